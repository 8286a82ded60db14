package iwarp

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// wirePeer is a peer that a test plays by hand, byte by byte: strict iWARP without checksums.
type wirePeer struct {
	t testing.TB
	c *net.TCPConn
}

// dialPeer connects a wirePeer as the initiator of e's QP, with MPA revision rev.
func dialPeer(t testing.TB, e *end, h hello) (*wirePeer, *hello) {
	t.Helper()
	l, err := e.dev.Listen(testCtx(t), "127.0.0.1:0")
	require.NoError(t, err)
	errc := make(chan error, 1)
	go func() {
		req, err := l.Accept(testCtx(t))
		if err == nil {
			err = req.Accept(testCtx(t), e.qp, e.param)
		}
		errc <- err
	}()
	c, err := net.Dial("tcp", l.Addr())
	require.NoError(t, err)
	p := &wirePeer{t: t, c: c.(*net.TCPConn)}
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	require.NoError(t, p.c.SetReadBuffer(64<<10)) // so that a peer that does not read is soon felt
	_, err = c.Write(appendHello(&h))
	require.NoError(t, err)
	d := Device{}
	reply, err := d.readHello(c, true)
	require.NoError(t, err)
	require.NoError(t, <-errc)
	require.NoError(t, l.Close())
	return p, reply
}

func v2Hello() hello {
	return hello{frame: wire.MPAFrame{Rev: 2, Enhanced: true}, enh: wire.Enhanced{IRD: 4, ORD: 4}}
}

// fpdu encodes a segment.
func fpdu(h wire.Header, payload []byte) []byte {
	ulpdu := h.Len() + len(payload)
	b := make([]byte, wire.Standard.Len(ulpdu))
	wire.Standard.PutLength(b, ulpdu)
	copy(b[2+wire.PutHeader(b[2:], &h):], payload)
	return b
}

func (p *wirePeer) send(h wire.Header, payload []byte) {
	p.t.Helper()
	_, err := p.c.Write(fpdu(h, payload))
	require.NoError(p.t, err)
}

// next reads one segment.
func (p *wirePeer) next() (wire.Header, []byte) {
	p.t.Helper()
	var l [2]byte
	_, err := io.ReadFull(p.c, l[:])
	require.NoError(p.t, err)
	n := int(binary.BigEndian.Uint16(l[:]))
	b := make([]byte, n+wire.Standard.Pad(n)+wire.CRCLen)
	_, err = io.ReadFull(p.c, b)
	require.NoError(p.t, err)
	var h wire.Header
	require.NoError(p.t, wire.DecodeHeader(b[:n], &h))
	return h, b[h.Len():n]
}

// terminated reads the Terminate that is due, and then the end of the stream.
func (p *wirePeer) terminated() wire.Terminate {
	p.t.Helper()
	h, body := p.next()
	require.Equal(p.t, wire.OpTerminate, h.Op)
	require.EqualValues(p.t, wire.QNTerminate, h.QN)
	require.EqualValues(p.t, 1, h.MSN)
	require.True(p.t, h.Last)
	term, err := wire.DecodeTerminate(body)
	require.NoError(p.t, err)
	_, err = p.c.Read(make([]byte, 1))
	require.ErrorIs(p.t, err, io.EOF)
	return term
}
