package conn

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// rawPeer is a queue pair without an endpoint: it says what a test wants it to.
type rawPeer struct {
	t   testing.TB
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
	mem []byte
	got []verbs.WC // of receives, that came while send waited
}

const (
	rawRecvs = 64
	rawSize  = 16 << 10
)

func newRawPeer(t testing.TB) *rawPeer {
	r := &rawPeer{t: t, mem: make([]byte, (rawRecvs+1)*rawSize)}
	var err error
	r.dev = env.Open(t)
	r.pd, err = r.dev.AllocPD()
	require.NoError(t, err)
	r.cq, err = r.dev.CreateCQ(verbs.CQConfig{Depth: 2 * rawRecvs})
	require.NoError(t, err)
	r.mr, err = r.pd.RegMR(r.mem, verbs.AccessLocalWrite)
	require.NoError(t, err)
	r.qp, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, MaxSendWR: rawRecvs, MaxRecvWR: rawRecvs})
	require.NoError(t, err)
	for i := range rawRecvs {
		_, err = r.qp.PostRecv([]verbs.RecvWR{{WRID: uint64(i), SGEs: []verbs.SGE{{MR: r.mr, Offset: uint64(i) * rawSize, Length: rawSize}}}})
		require.NoError(t, err)
	}
	t.Cleanup(r.close)
	return r
}

func (r *rawPeer) close() {
	_, err := r.qp.Close()
	require.NoError(r.t, err)
	require.NoError(r.t, r.mr.Deregister())
	require.NoError(r.t, r.cq.Close())
	require.NoError(r.t, r.pd.Close())
	require.NoError(r.t, r.dev.Close())
}

// connect dials with any private data.
func (r *rawPeer) connect(addr string, private []byte) (verbs.ConnParam, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), wait)
	defer cancel()
	return r.qp.Connect(ctx, addr, verbs.ConnParam{PrivateData: private, IRD: 8, ORD: 8})
}

const rawEpoch = 0x1234

func rawHello(change func(*wire.Hello)) []byte {
	h := wire.Hello{
		Credits: rawRecvs, Rendezvous: 4, Features: wire.FeatureRendezvous, RecvSize: rawSize, Epoch: rawEpoch, MaxMessage: 1 << 20,
	}
	if change != nil {
		change(&h)
	}
	var b [wire.HelloLen]byte
	h.Put(&b)
	return b[:]
}

// send makes a SEND of b.
func (r *rawPeer) send(b []byte) {
	off := rawRecvs * rawSize
	copy(r.mem[off:], b)
	_, err := r.qp.PostSend([]verbs.SendWR{{
		WRID: 1 << 32, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		SGEs: []verbs.SGE{{MR: r.mr, Offset: uint64(off), Length: uint32(len(b))}},
	}})
	require.NoError(r.t, err)
	for {
		wc := r.poll()
		if wc.WRID == 1<<32 {
			return
		}
		r.got = append(r.got, wc)
	}
}

// recv waits for a packet.
func (r *rawPeer) recv() ([]byte, verbs.WC) {
	var wc verbs.WC
	if len(r.got) > 0 {
		wc, r.got = r.got[0], r.got[1:]
	} else {
		wc = r.poll()
	}
	require.Equal(r.t, verbs.StatusSuccess, wc.Status)
	require.Less(r.t, wc.WRID, uint64(rawRecvs))
	return r.mem[wc.WRID*rawSize:][:wc.ByteLen], wc
}

// poll waits for a completion.
func (r *rawPeer) poll() verbs.WC {
	ctx, cancel := context.WithTimeout(r.t.Context(), wait)
	defer cancel()
	var wcs [1]verbs.WC
	for ctx.Err() == nil {
		n, err := r.cq.Poll(wcs[:])
		require.NoError(r.t, err)
		if n == 1 {
			return wcs[0]
		}
	}
	r.t.Fatal("no completion came")
	return verbs.WC{}
}

// packet is a packet of records with their bodies.
func rawPacket(p wire.Packet, parts ...any) []byte {
	b := make([]byte, wire.PacketLen)
	p.Put(b)
	for _, part := range parts {
		switch v := part.(type) {
		case wire.Record:
			h := make([]byte, wire.RecordLen)
			v.Put(h)
			b = append(b, h...)
		case wire.Segment:
			h := make([]byte, wire.SegmentLen)
			v.Put(h)
			b = append(b, h...)
		case string:
			b = append(b, v...)
		}
	}
	return b
}
