package iwarp

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var sizes = []int{0, 1, 2, 3, 63, 64, 511, 512, 513, 4095, 8191, 8192, 8193, 65535, 65536, 100003, 1<<20 - 1, 1 << 20, 3<<20 + 5}

// someSizes leaves the largest out where time counts: the conformance suite has them.
func someSizes() []int {
	if testing.Short() || raceEnabled {
		return sizes[:len(sizes)-3]
	}
	return sizes
}

func forVariants(t *testing.T, f func(t *testing.T, c endConfig)) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { f(t, endConfig{cfg: v.cfg}) })
	}
}

func TestSend(t *testing.T) {
	forVariants(t, func(t *testing.T, c endConfig) {
		a, b := pair(t, c)
		src, sm := a.mem(4<<20, 0)
		dst, dm := b.mem(4<<20, driver.AccessLocalWrite)
		for i, n := range someSizes() {
			pattern(src[:n+1], i)
			clear(dst[:n+8])
			// Odd offsets, several SGEs on both sides.
			b.recv(uint64(i), sgeOf(dm, 3, n/3), sgeOf(dm, 3+n/3, 0), sgeOf(dm, 3+n/3, n-n/3))
			a.post(driver.SendWR{WRID: uint64(100 + i), Opcode: driver.OpSend, Flags: driver.SendSignaled,
				SGEs: []driver.SGE{sgeOf(sm, 1, n/2), sgeOf(sm, 1+n/2, n-n/2)}})
			wc := a.waitOK(a.scq, 1)[0]
			require.Equal(t, uint64(100+i), wc.WRID)
			require.Equal(t, driver.OpSend, wc.Opcode)
			require.Equal(t, a.qp.QPN(), wc.QPN)
			wc = b.waitOK(b.rcq, 1)[0]
			require.Equal(t, uint64(i), wc.WRID)
			require.Equal(t, driver.OpRecv, wc.Opcode)
			require.EqualValues(t, n, wc.ByteLen)
			require.Equal(t, src[1:1+n], dst[3:3+n], "size %d", n)
			require.Zero(t, dst[3+n])
		}
	})
}

func TestWriteAndRead(t *testing.T) {
	forVariants(t, func(t *testing.T, c endConfig) {
		a, b := pair(t, c)
		src, sm := a.mem(4<<20, driver.AccessLocalWrite)
		dst, dm := b.mem(4<<20, driver.AccessLocalWrite|driver.AccessRemoteWrite|driver.AccessRemoteRead)
		for i, n := range someSizes() {
			pattern(src[:n+1], i)
			clear(dst[:n+8])
			a.post(driver.SendWR{WRID: 1, Opcode: driver.OpWrite, RemoteAddr: dm.Addr() + 5, RKey: dm.RKey(),
				SGEs: []driver.SGE{sgeOf(sm, 1, n/2), sgeOf(sm, 1+n/2, n-n/2)}})
			// The READ behind the WRITE sees what it placed.
			back, bm := a.mem(n+16, driver.AccessLocalWrite)
			a.post(driver.SendWR{WRID: 2, Opcode: driver.OpRead, Flags: driver.SendSignaled, RemoteAddr: dm.Addr() + 5, RKey: dm.RKey(),
				SGEs: []driver.SGE{sgeOf(bm, 2, n)}})
			wc := a.waitOK(a.scq, 1)[0]
			require.Equal(t, uint64(2), wc.WRID)
			require.Equal(t, driver.OpRead, wc.Opcode)
			require.EqualValues(t, n, wc.ByteLen)
			require.Equal(t, src[1:1+n], back[2:2+n], "size %d", n)
			require.Zero(t, back[2+n])
			require.Equal(t, src[1:1+n], dst[5:5+n])
		}
	})
}

// Responder and initiator both send, many at a time, in both directions and of mixed sizes.
func TestBothWays(t *testing.T) {
	forVariants(t, func(t *testing.T, c endConfig) {
		a, b := pair(t, c)
		const count, size = 60, 20000
		for _, e := range []*end{a, b} {
			_, m := e.mem(64*size, driver.AccessLocalWrite)
			for i := range 64 {
				e.recv(uint64(i), sgeOf(m, i*size, size))
			}
		}
		errs := make(chan error, 2)
		go func() { errs <- exchangeMany(a, count, size) }()
		go func() { errs <- exchangeMany(b, count, size) }()
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
	})
}

func exchangeMany(e *end, count, size int) error {
	src := make([]byte, size)
	m, err := e.pd.RegMR(src, 0)
	if err != nil {
		return err
	}
	for i := range count {
		n := 1 + i*331%size
		if _, err := e.qp.PostSend([]driver.SendWR{{WRID: uint64(i), Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(m, 0, n)}}}); err != nil {
			return err
		}
	}
	for i, wc := range e.wait(e.scq, count) {
		if wc.Status != driver.StatusSuccess || wc.WRID != uint64(i) {
			return fmt.Errorf("send %d: %v", wc.WRID, wc.Status)
		}
	}
	for i, wc := range e.wait(e.rcq, count) {
		if wc.Status != driver.StatusSuccess || wc.WRID != uint64(i) || int(wc.ByteLen) != 1+i*331%size {
			return fmt.Errorf("receive %d: %v of %d", wc.WRID, wc.Status, wc.ByteLen)
		}
	}
	return m.Deregister()
}
