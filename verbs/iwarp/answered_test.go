package iwarp

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// gatedConn has the first Write return late, and the second begin late.
type gatedConn struct {
	plainConn
	writes  int           // the sender's
	entered chan struct{} // receives once per gate
	gate    chan struct{}
}

func (c *gatedConn) Write(p []byte) (n int, err error) {
	c.writes++
	switch c.writes {
	case 2: // (the first is the MPA request)
		n, err = c.plainConn.Write(p)
		c.entered <- struct{}{}
		<-c.gate
		return n, err
	case 3:
		c.entered <- struct{}{}
		<-c.gate
	}
	return c.plainConn.Write(p)
}

// The answer to a READ may come before the sender knows that the request is out.
// Its slot may be that of a SEND by then, which has not been sent.
func TestSlotOfAnAnsweredRead(t *testing.T) {
	gate, entered := make(chan struct{}), make(chan struct{})
	a := newEnd(t, endConfig{depth: 1, cfg: Config{Strict: true, CRC: CRCOff, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := wrapDial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &gatedConn{plainConn: c.(plainConn), entered: entered, gate: gate}, nil
	}}})
	b := newEnd(t, endConfig{cfg: Config{Strict: true, CRC: CRCOff}})
	dst, dm := a.mem(100, driver.AccessLocalWrite|driver.AccessRemoteWrite)
	src, sm := b.mem(100, driver.AccessRemoteRead)
	pattern(src, 1)
	in, im := b.mem(100, driver.AccessLocalWrite)
	b.recv(7, sgeOf(im, 0, 100))
	connect(t, a, b, "127.0.0.1:0")

	a.post(driver.SendWR{WRID: 1, Opcode: driver.OpRead, Flags: driver.SendSignaled, RemoteAddr: sm.Addr(), RKey: sm.RKey(),
		SGEs: []driver.SGE{sgeOf(dm, 0, 100)}})
	<-entered
	a.waitOK(a.scq, 1)
	require.Equal(t, src, dst)
	a.post(driver.SendWR{WRID: 2, Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(dm, 0, 100)}})
	gate <- struct{}{} // the READ is known to be out
	<-entered
	var wcs [1]driver.WC
	n, err := a.scq.Poll(wcs[:])
	require.NoError(t, err)
	require.Zero(t, n, "it has not been sent: %+v", wcs)
	gate <- struct{}{}
	require.EqualValues(t, 2, a.waitOK(a.scq, 1)[0].WRID)
	require.EqualValues(t, 7, b.waitOK(b.rcq, 1)[0].WRID)
	require.Equal(t, src, in)
}
