package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/test/interop/internal/bare"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// An advertisement is a SEND of 16 bytes, big endian: u64 address, u32 rkey, u32 length. To say go is one whose content
// means nothing.
const advLen = 16

// Places in the memory of a pinger. source and sink are config.size bytes each.
const (
	outAt    = 0
	inAt     = outAt + advLen
	recvs    = 4 // receives of advLen bytes from inAt on
	sourceAt = 4096
)

// pinger is one end of a connection.
type pinger struct {
	*bare.End
	c    config
	sink int
	got  []int // receives that have come, by place
	gone bool  // the peer has ended the connection
}

var errGone = errors.New("the peer has ended the connection")

// newPinger makes everything but the connection, with receives posted.
func newPinger(dev *verbs.Device, c config) (*pinger, error) {
	e, err := bare.New(dev, bare.Config{
		Mem:    make([]byte, sourceAt+2*c.size),
		Access: verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite,
		SendWR: 8, RecvWR: recvs,
	})
	if err != nil {
		return nil, err
	}
	p := &pinger{End: e, c: c, sink: sourceAt + c.size}
	for i := range recvs {
		if err := p.receive(i); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// Kinds of work requests; a receive's wr_id is its place, from recvID on.
const (
	sendID = 1
	opID   = 2
	recvID = 100
)

func (p *pinger) receive(i int) error { return p.Recv(uint64(recvID+i), inAt+i*advLen, advLen) }

// completion waits for the completion of a send or a one-sided request, or, with recvID, for a receive, and returns its
// place. Receives that come meanwhile are kept.
func (p *pinger) completion(ctx context.Context, id uint64) (int, error) {
	for {
		if id == recvID && len(p.got) > 0 {
			i := p.got[0]
			p.got = p.got[1:]
			return i, nil
		}
		if p.gone { // what has completed before may still come
			return 0, errGone
		}
		var wc [1]verbs.WC
		if _, err := p.Poll(ctx, wc[:]); err != nil {
			return 0, err
		}
		switch {
		case wc[0].Status == verbs.StatusWRFlushErr:
			p.gone = true
			return 0, errGone
		case wc[0].Status != verbs.StatusSuccess:
			return 0, verbs.WCErr(&wc[0])
		case wc[0].WRID >= recvID:
			if wc[0].ByteLen != advLen {
				return 0, fmt.Errorf("a message of %d bytes, not %d", wc[0].ByteLen, advLen)
			}
			p.got = append(p.got, int(wc[0].WRID-recvID))
		case wc[0].WRID == id:
			return 0, nil
		default:
			return 0, fmt.Errorf("completion of %d instead of %d", wc[0].WRID, id)
		}
	}
}

// advertise tells the peer of n bytes of ours at at.
func (p *pinger) advertise(ctx context.Context, at, n int) error {
	b := p.Mem[outAt:][:advLen]
	binary.BigEndian.PutUint64(b, p.MR.Addr()+uint64(at))
	binary.BigEndian.PutUint32(b[8:], p.MR.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(n))
	_, err := p.QP.PostSend([]verbs.SendWR{{WRID: sendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGEs: p.SGE(outAt, advLen)}})
	if err != nil {
		return err
	}
	_, err = p.completion(ctx, sendID)
	return err
}

// heard waits for a message of the peer's and returns it.
func (p *pinger) heard(ctx context.Context) (addr uint64, rkey uint32, n int, err error) {
	i, err := p.completion(ctx, recvID)
	if err != nil {
		return 0, 0, 0, err
	}
	b := p.Mem[inAt+i*advLen:][:advLen]
	addr, rkey, n = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), int(binary.BigEndian.Uint32(b[12:]))
	return addr, rkey, n, p.receive(i)
}

// ping is the client.
func (p *pinger) ping(ctx context.Context) error {
	if _, err := p.QP.Connect(ctx, p.c.addr, verbs.ConnParam{IRD: 1, ORD: 1}); err != nil {
		return err
	}
	source, sink := p.Mem[sourceAt:][:p.c.size], p.Mem[p.sink:][:p.c.size]
	for round := 0; p.c.count == 0 || round < p.c.count; round++ {
		text(source, round)
		clear(sink)
		for _, at := range []int{sourceAt, p.sink} { // read it there, write it here
			if err := p.advertise(ctx, at, p.c.size); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			if _, _, _, err := p.heard(ctx); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		if p.c.validate && !bytes.Equal(source, sink) {
			return fmt.Errorf("round %d: %q came back as %q", round, source, sink)
		}
		p.print("ping data: ", sink)
	}
	return p.QP.Disconnect()
}

// text fills b as rping does: the number of the round, then letters, and a 0 at the end.
func text(b []byte, round int) {
	n := copy(b, fmt.Sprintf("rdma-ping-%d: ", round))
	for i := n; i < len(b); i++ {
		b[i] = byte('A' + (round+i-n)%('z'-'A'+1))
	}
	b[len(b)-1] = 0
}

func (p *pinger) print(what string, b []byte) {
	if p.c.verbose != nil {
		_, _ = fmt.Fprintf(p.c.verbose, "%s%s\n", what, bytes.TrimRight(b, "\x00")) // what could be done about it
	}
}

// serve is the server, of one connection.
func (p *pinger) serve(ctx context.Context) error {
	l, err := p.Dev.Listen(ctx, p.c.addr)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // it has accepted, or failed
	if p.c.listens != nil {
		p.c.listens(l.Addr())
	}
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	if err := r.Accept(ctx, p.QP, verbs.ConnParam{IRD: 1, ORD: 1}); err != nil {
		return err
	}
	for round := 0; ; round++ {
		n, err := p.answer(ctx, verbs.OpRead)
		if errors.Is(err, errGone) && (p.c.count == 0 || round == p.c.count) {
			return nil
		}
		if err == nil {
			p.print("server ping data: ", p.Mem[sourceAt:][:n])
			_, err = p.answer(ctx, verbs.OpWrite)
		}
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
}

// answer waits for an advertisement, READs from there or WRITEs to there, and says go.
func (p *pinger) answer(ctx context.Context, op verbs.Opcode) (int, error) {
	addr, rkey, n, err := p.heard(ctx)
	if err != nil {
		return 0, err
	}
	if n > p.c.size {
		return 0, fmt.Errorf("the client has buffers of %d bytes, we of %d: use -S", n, p.c.size)
	}
	_, err = p.QP.PostSend([]verbs.SendWR{{
		WRID: opID, Opcode: op, Flags: verbs.SendSignaled, SGEs: p.SGE(sourceAt, n), RemoteAddr: addr, RKey: rkey,
	}})
	if err != nil {
		return 0, err
	}
	if _, err := p.completion(ctx, opID); err != nil {
		return 0, err
	}
	err = p.advertise(ctx, sourceAt, n)
	if errors.Is(err, errGone) {
		err = nil // a client that has heard it may have gone before our device knows
	}
	return n, err
}
