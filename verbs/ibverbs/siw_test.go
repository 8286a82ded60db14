//go:build ibverbs && linux && cgo

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// A context has room for the queues of many objects: one of them lies where libsiw
// can not have it.
func TestManyQueues(t *testing.T) {
	d, _ := testDevice(t)
	for range 300 { // each a page of the context
		q, err := d.CreateCQ(1, nil, 0)
		require.NoError(t, err)
		defer func() { require.NoError(t, q.Destroy()) }()
	}
}

// siwQP is a queue pair of siw without a device behind it.
func siwQP() *qp {
	q := &qp{dev: bareDevice(), qpn: 7, destroyed: true} // so that fault asks no device
	q.dev.attr.VendorID = vendorSIW
	return q
}

// What siw is given for short payload in two pages.
func TestCutAtPages(t *testing.T) {
	one := func(addr uint64, n uint32) []driver.SGE { return []driver.SGE{{Addr: addr, Length: n, LKey: 3}} }
	type parts [][]cverbs.SGE // by request of the device
	sge := func(addr uint64, n uint32) cverbs.SGE { return cverbs.SGE{Addr: addr, Length: n, LKey: 3} }
	for name, c := range map[string]struct {
		wr     driver.SendWR
		want   parts
		remote []uint64
	}{
		"within a page":   {driver.SendWR{SGEs: one(4090, 6)}, parts{{sge(4090, 6)}}, nil},
		"across":          {driver.SendWR{SGEs: one(4090, 7)}, parts{{sge(4090, 6), sge(4096, 1)}}, nil},
		"the longest":     {driver.SendWR{Opcode: driver.OpWrite, SGEs: one(8191, 32)}, parts{{sge(8191, 1), sge(8192, 31)}}, nil},
		"longer":          {driver.SendWR{SGEs: one(8191, 33)}, parts{{sge(8191, 33)}}, nil},
		"inline":          {driver.SendWR{Flags: driver.SendInline, SGEs: one(4090, 7)}, parts{{sge(4090, 7)}}, nil},
		"two SGEs":        {driver.SendWR{SGEs: append(one(4090, 7), one(1, 2)...)}, parts{{sge(4090, 7), sge(1, 2)}}, nil},
		"no SGE":          {driver.SendWR{}, parts{{}}, nil},
		"READ":            {driver.SendWR{Opcode: driver.OpRead, RemoteAddr: 4085, SGEs: one(100, 32)}, parts{{sge(100, 11)}, {sge(111, 21)}}, []uint64{4085, 4096}},
		"READ of a page":  {driver.SendWR{Opcode: driver.OpRead, RemoteAddr: 4064, SGEs: one(4090, 32)}, parts{{sge(4090, 32)}}, []uint64{4064}},
		"READ of nothing": {driver.SendWR{Opcode: driver.OpRead, RemoteAddr: 4090}, parts{{}}, []uint64{4090}},
	} {
		t.Run(name, func(t *testing.T) {
			q := siwQP()
			c.wr.WRID = 9
			c.wr.Flags |= driver.SendSignaled
			called := false
			n, err := q.send([]driver.SendWR{c.wr}, func(wrs []cverbs.SendWR, sges []cverbs.SGE) (int, unix.Errno) {
				called = true
				require.Len(t, wrs, len(c.want))
				for i, want := range c.want {
					require.EqualValues(t, len(want), wrs[i].NumSGE)
					require.Equal(t, want, append([]cverbs.SGE{}, sges[:len(want)]...))
					sges = sges[len(want):]
					require.EqualValues(t, 9, wrs[i].WRID)
					require.Equal(t, i == len(c.want)-1, wrs[i].Flags&uint32(driver.SendSignaled) != 0)
					if c.remote != nil {
						require.Equal(t, c.remote[i], wrs[i].RemoteAddr)
					}
				}
				require.Empty(t, sges)
				return len(wrs), 0
			})
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.True(t, called)
			wc := driver.WC{WRID: 9, QPN: 7, Opcode: driver.OpRead, ByteLen: 21}
			q.dev.halved.whole(&wc)
			if len(c.want) == 2 {
				require.EqualValues(t, 32, wc.ByteLen)
			} else {
				require.EqualValues(t, 21, wc.ByteLen)
			}
			require.Zero(t, q.dev.halved.n.Load())
		})
	}
}

// Of requests that are two of siw's it is the caller's that are counted, and one
// of which only half is queued counts: it completes.
func TestCountOfCutRequests(t *testing.T) {
	wrs := make([]driver.SendWR, 50) // 100 of siw's
	for i := range wrs {
		wrs[i] = driver.SendWR{WRID: uint64(i), Opcode: driver.OpRead, RemoteAddr: 4095, SGEs: []driver.SGE{{Addr: 0, Length: 2}}}
	}
	for name, c := range map[string]struct {
		answers []answer
		done    int
		given   int
		err     error // nil: none
		fault   bool
	}{
		"all":              {[]answer{{64, 0}, {36, 0}}, 50, 100, nil, false},
		"full":             {[]answer{{10, unix.ENOMEM}}, 5, 64, driver.ErrQueueFull, false},
		"full at half":     {[]answer{{11, unix.ENOMEM}}, 6, 64, driver.ErrQPState, true},
		"half of the last": {[]answer{{64, 0}, {35, 0}}, 50, 100, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			q := siwQP()
			var given int
			done, err := q.send(wrs, answers[cverbs.SendWR](t, c.answers, &given))
			require.Equal(t, c.done, done)
			require.Equal(t, c.given, given)
			if c.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.err)
			}
			_, ok := q.dev.events.pop()
			require.Equal(t, c.fault, ok)
			q.dev.halved.forgetAll(7)
			require.Zero(t, q.dev.halved.n.Load())
		})
	}
}
