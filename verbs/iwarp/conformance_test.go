package iwarp_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// What no iWARP device has.
var skipsOfAll = []string{
	"ReadManySGEs", "ReceiverNotReadyForEver", "OutOfBand", "OutOfBandManyTimes", "OutOfBandRefusals", "OutOfBandWrongState", "OutOfBandPeerGone",
}

// What RFC 7306 adds is there between two of our own only.
var skipsOfStrict = append([]string{
	"SendWithImmediate", "WriteWithImmediate", "FetchAdd", "CompareSwap", "AtomicsOfMany", "AtomicViolations",
}, skipsOfAll...)

func driverOpener(c iwarp.Config) func(tb testing.TB) driver.Device {
	return func(tb testing.TB) driver.Device {
		d, err := iwarp.OpenDriver(c)
		require.NoError(tb, err)
		return d
	}
}

func opener(c iwarp.Config) func(tb testing.TB) *verbs.Device {
	return func(tb testing.TB) *verbs.Device {
		d, err := iwarp.Open(c)
		require.NoError(tb, err)
		return d
	}
}

// limited is a device whose limits the suite can reach.
var limited = iwarp.Config{
	MaxPD: 5, MaxQP: 17, MaxCQ: 40, MaxMR: 33, MaxMW: 9, MaxSRQ: 7, MaxPages: 64, MaxMRSize: 1 << 20, MaxCQE: 1000, MaxQPWR: 100,
	MaxSRQWR: 100, MaxSGE: 4, MaxInline: 64,
}

func TestConformance(t *testing.T) {
	verbstest.Run(t, verbstest.Config{
		Open: opener(iwarp.Config{}), OpenDriver: driverOpener(iwarp.Config{}), OpenLimited: opener(limited), Skips: skipsOfAll,
	})
}

// Both ends are strict: they speak to each other as to a foreign adapter.
func TestConformanceStrict(t *testing.T) {
	verbstest.Run(t, verbstest.Config{
		Open: opener(iwarp.Config{Strict: true}), OpenDriver: driverOpener(iwarp.Config{Strict: true}), Skips: skipsOfStrict, Quick: true,
	})
}

// One end is strict, the other falls back.
func TestConformanceFallback(t *testing.T) {
	verbstest.Run(t, verbstest.Config{
		Open: opener(iwarp.Config{}), OpenDriver: driverOpener(iwarp.Config{}), OpenPeer: opener(iwarp.Config{Strict: true}), Skips: skipsOfStrict, PrivateDataTrails: true, Quick: true,
	})
}

func TestConformanceChecksums(t *testing.T) {
	verbstest.Run(t, verbstest.Config{
		Open: opener(iwarp.Config{CRC: iwarp.CRCOn}), OpenDriver: driverOpener(iwarp.Config{CRC: iwarp.CRCOn}), Skips: skipsOfAll, Quick: true,
	})
}

// Segments so small that everything is many of them.
func TestConformanceSmallSegments(t *testing.T) {
	verbstest.Run(t, verbstest.Config{
		Open: opener(iwarp.Config{SegmentSize: 4096, CRC: iwarp.CRCOff}), OpenDriver: driverOpener(iwarp.Config{SegmentSize: 4096, CRC: iwarp.CRCOff}), Skips: skipsOfAll, Quick: true,
	})
}

func TestConformanceIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no IPv6 loopback: %v", err)
	}
	require.NoError(t, l.Close())
	verbstest.Run(t, verbstest.Config{
		Open: opener(iwarp.Config{}), OpenDriver: driverOpener(iwarp.Config{}), ListenAddr: "[::1]:0", Skips: skipsOfAll, Quick: true,
	})
}

// The whole suite pins less than 256 MiB at a time.
func TestConformancePinned(t *testing.T) {
	d, err := iwarp.Open(iwarp.Config{Pin: true})
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	mr, err := pd.RegMR(make([]byte, 256<<20), verbs.AccessLocalWrite)
	if err == nil {
		require.NoError(t, mr.Deregister())
	}
	require.NoError(t, pd.Close())
	require.NoError(t, d.Close())
	if errors.Is(err, verbs.ErrMemlock) || errors.Is(err, verbs.ErrNotSupported) {
		t.Skipf("256 MiB can not be pinned here: %v", err)
	}
	require.NoError(t, err)
	verbstest.Run(t, verbstest.Config{
		Open: opener(iwarp.Config{Pin: true}), OpenDriver: driverOpener(iwarp.Config{Pin: true}), Skips: skipsOfAll, Quick: true,
	})
}

// A network that is not TCP, and that splits what it carries at any byte.
func TestConformanceForeignConn(t *testing.T) {
	var d net.Dialer
	var lc net.ListenConfig
	c := iwarp.Config{
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := d.DialContext(ctx, "tcp", addr)
			return splitting{c}, err
		},
		Listen: func(ctx context.Context, addr string) (net.Listener, error) {
			l, err := lc.Listen(ctx, "tcp", addr)
			return splittingListener{l}, err
		},
	}
	verbstest.Run(t, verbstest.Config{Open: opener(c), OpenDriver: driverOpener(c), Skips: skipsOfAll, Quick: true})
}

// splitting hides what its Conn is and splits reads and writes.
type splitting struct{ net.Conn }

func (c splitting) Read(p []byte) (int, error) { return c.Conn.Read(p[:cut(len(p))]) }

func (c splitting) Write(p []byte) (int, error) {
	n := cut(len(p))
	done, err := c.Conn.Write(p[:n])
	if err == nil && n < len(p) {
		n, err = c.Conn.Write(p[n:])
		done += n
	}
	return done, err
}

// CloseWrite is what a graceful end needs.
func (c splitting) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// cut is a length from 1 to n: often n, often near it, often small.
func cut(n int) int {
	switch {
	case n <= 1:
		return n
	case rand.IntN(2) == 0:
		return n
	case rand.IntN(2) == 0:
		return max(1, n-rand.IntN(min(n, 32)))
	}
	return 1 + rand.IntN(min(n, 8192))
}

type splittingListener struct{ net.Listener }

func (l splittingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return splitting{c}, nil
}

// A network in memory, without half-close and without buffers.
func TestConformanceMemNet(t *testing.T) {
	n := newMemNet()
	c := iwarp.Config{Dial: n.Dial, Listen: n.Listen}
	verbstest.Run(t, verbstest.Config{
		Open: opener(c), OpenDriver: driverOpener(c), SingleProcess: true, Quick: true,
		Skips: append([]string{
			"PeerKilledIdle", "PeerKilledUnderSends", "PeerKilledUnderWrites", "PeerKilledUnderReads", "PeerKilledWriting",
			"PeerKilledReading", "PeerKilledInHandshake", "DialerKilled",
		}, skipsOfAll...),
	})
}
