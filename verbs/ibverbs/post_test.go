//go:build ibverbs && linux && cgo

package ibverbs

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// Tests of what is decided before and after a call into the library, which need
// no device.

// answer is what a post of the library said about a batch.
type answer struct {
	queued int
	errno  unix.Errno
}

// answers gives one answer after the other and counts the requests it was given.
func answers[W any](t *testing.T, as []answer, given *int) func([]W, []cverbs.SGE) (int, unix.Errno) {
	return func(wrs []W, _ []cverbs.SGE) (int, unix.Errno) {
		require.NotEmpty(t, as, "a call more than expected")
		a := as[0]
		as = as[1:]
		*given += len(wrs)
		return a.queued, a.errno
	}
}

// bareDevice is one without a context.
func bareDevice() *device {
	d := &device{log: slog.New(slog.DiscardHandler)}
	d.events.init()
	return d
}

func TestPostAnswers(t *testing.T) {
	const n = 100 // two batches
	full, broken := unix.ENOMEM, unix.EIO
	for name, c := range map[string]struct {
		answers []answer
		done    int
		given   int
		err     error // nil: none
		fault   bool
	}{
		"all":                           {[]answer{{64, 0}, {36, 0}}, 100, 100, nil, false},
		"full at once":                  {[]answer{{0, full}}, 0, 64, driver.ErrQueueFull, false},
		"full in the first batch":       {[]answer{{16, full}}, 16, 64, driver.ErrQueueFull, false},
		"full, said with success":       {[]answer{{16, 0}}, 16, 64, driver.ErrQueueFull, false},
		"full in the second":            {[]answer{{64, 0}, {5, full}}, 69, 100, driver.ErrQueueFull, false},
		"refused":                       {[]answer{{3, unix.EINVAL}}, 3, 64, driver.ErrInvalid, false},
		"queued and failed, more left":  {[]answer{{64, broken}}, 64, 64, driver.ErrQPState, true},
		"queued and failed, the last":   {[]answer{{64, 0}, {36, broken}}, 100, 100, nil, true},
		"queued and failed, full of it": {[]answer{{64, full}}, 64, 64, driver.ErrQPState, true},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(done, given int, err error) {
				require.Equal(t, c.done, done)
				require.Equal(t, c.given, given)
				if c.err == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, c.err)
				}
			}
			q := &qp{dev: bareDevice(), destroyed: true} // so that fault asks no device
			var given int
			done, err := q.send(make([]driver.SendWR, n), answers[cverbs.SendWR](t, c.answers, &given))
			check(done, given, err)
			ev, ok := q.dev.events.pop()
			require.Equal(t, c.fault, ok)
			if ok {
				require.Equal(t, driver.Event{Type: driver.EventQPFatal, QP: q}, ev)
			}

			given = 0
			var s recvScratch
			done, errno, err := s.post(make([]driver.RecvWR, n), "post", answers[cverbs.RecvWR](t, c.answers, &given))
			check(done, given, err)
			require.Equal(t, c.fault, errno != 0)
		})
	}
}

func TestFaultOfSharedReceiveQueueIsReported(t *testing.T) {
	s := &srq{dev: bareDevice()}
	s.fault(unix.EIO)
	ev, ok := s.dev.events.pop()
	require.True(t, ok)
	require.Equal(t, driver.Event{Type: driver.EventSRQErr, SRQ: s}, ev)
}

// Retries end: 7 means for ever to rxe, and as a count of receiver-not-ready
// retries to everybody.
func TestRetriesAreFinite(t *testing.T) {
	const other = 0x2c9
	for _, c := range []struct {
		vendor             int
		retry, rnr         int
		wantRetry, wantRNR int
		err                error
	}{
		{vendorRXE, 0, 0, 6, 6, nil},
		{vendorRXE, 7, 6, 6, 6, nil},
		{vendorRXE, 3, 1, 3, 1, nil},
		{other, 0, 0, 6, 6, nil},
		{other, 7, 6, 7, 6, nil},
		{other, 8, 0, 0, 0, driver.ErrInvalid},
		{other, 0, 7, 0, 0, driver.ErrInvalid},
		{other, -1, 0, 0, 0, driver.ErrInvalid},
	} {
		d := bareDevice()
		d.attr.VendorID = vendorRXE
		if c.vendor != vendorRXE {
			d.attr.VendorID = other
		}
		d.caps = driver.Caps{MaxIRD: 8, MaxORD: 32}
		p, err := (&qp{dev: d}).connParam(driver.ConnParam{RetryCnt: c.retry, RNRRetry: c.rnr})
		if c.err != nil {
			require.ErrorIs(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.wantRetry, p.RetryCount, "%+v", c)
		require.Equal(t, c.wantRNR, p.RNRRetryCount, "%+v", c)
		require.Equal(t, 8, p.ResponderResources)
		require.Equal(t, 16, p.InitiatorDepth)
	}
}

// The zone of a link-local address says on which interface it is meant.
func TestResolveKeepsTheZone(t *testing.T) {
	for addr, want := range map[string]cverbs.SockAddr{
		"10.1.2.3:7":         {AddrPort: netip.MustParseAddrPort("10.1.2.3:7")},
		":7":                 {AddrPort: netip.MustParseAddrPort("0.0.0.0:7")},
		"[fd09::1]:7":        {AddrPort: netip.MustParseAddrPort("[fd09::1]:7")},
		"[fe80::1%3]:7":      {AddrPort: netip.MustParseAddrPort("[fe80::1%3]:7"), Scope: 3},
		"[fe80::1%lo]:7":     {AddrPort: netip.MustParseAddrPort("[fe80::1%lo]:7"), Scope: 1},
		"[::ffff:1.2.3.4]:7": {AddrPort: netip.MustParseAddrPort("1.2.3.4:7")},
	} {
		got, err := resolve(t.Context(), addr)
		require.NoError(t, err, addr)
		require.Equal(t, want, got, addr)
	}
	_, err := resolve(t.Context(), "[fe80::1%no-such-interface]:7")
	require.ErrorIs(t, err, driver.ErrInvalid)
}

func TestZoned(t *testing.T) {
	at := func(a string, scope uint32) cverbs.SockAddr {
		return cverbs.SockAddr{AddrPort: netip.MustParseAddrPort(a), Scope: scope}
	}
	local, global, v4 := "[fe80::1]:1", "[fd09::1]:2", "10.0.0.1:3"
	for _, c := range []struct{ a, b, wantA, wantB cverbs.SockAddr }{
		{at(local, 2), at(local, 0), at(local, 2), at(local, 2)},
		{at(local, 0), at(local, 3), at(local, 3), at(local, 3)},
		{at(local, 0), at(local, 0), at(local, 9), at(local, 9)},
		{at(global, 0), at(local, 0), at(global, 0), at(local, 9)},
		{at(v4, 0), at(v4, 0), at(v4, 0), at(v4, 0)},
	} {
		a, b := zoned(c.a, c.b, 9)
		require.Equal(t, c.wantA, a)
		require.Equal(t, c.wantB, b)
	}
}

func TestAckTimeout(t *testing.T) {
	d := bareDevice()
	for _, c := range []struct {
		t    time.Duration
		code int
	}{
		{0, 14}, {time.Nanosecond, 1}, {8192, 1}, {8193, 2}, {67 * time.Millisecond, 14}, {time.Second, 18}, {1000 * time.Hour, 31},
	} {
		require.Equal(t, c.code, d.ackTimeoutCode(c.t), "%v", c.t)
	}
	d.attr.VendorID = vendorRXE
	require.Equal(t, 16, d.ackTimeoutCode(0))
}

func TestODP(t *testing.T) {
	const general, all = cverbs.ODPSupport, cverbs.ODPSupportSend | cverbs.ODPSupportRecv | cverbs.ODPSupportWrite | cverbs.ODPSupportRead
	for _, c := range []struct {
		general uint64
		rc      uint32
		want    bool
	}{
		{0, 0, false},
		{0, all, false},
		{general, 0, false},
		{general, all, true},
		{general, all &^ cverbs.ODPSupportSend, false},
		{general, all &^ cverbs.ODPSupportRecv, false},
		{general, all &^ cverbs.ODPSupportWrite, false},
		{general, all &^ cverbs.ODPSupportRead, false},
		{general | 1<<20, all | 1<<20, true}, // what is not known yet
	} {
		require.Equal(t, c.want, odp(cverbs.DeviceAttr{ODPGeneralCaps: c.general, ODPRCCaps: c.rc}), "%+v", c)
	}
}

// The library reads its own environment.
func TestForkSafetyOfHugePages(t *testing.T) {
	require.Equal(t, "1", cverbs.HugePagesSafe())
	require.Equal(t, "1", cverbs.HugePagesSafe())
}
