package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

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
	c    config
	dev  *verbs.Device
	pd   *verbs.PD
	ch   *verbs.CompChannel
	cq   *verbs.CQ
	qp   *verbs.QP
	mr   *verbs.MR
	mem  []byte
	sink int
	got  []int // receives that have come, by place
}

var errGone = errors.New("the peer has ended the connection")

// newPinger makes everything but the connection. What it returns is to be closed, also on an error.
func newPinger(dev *verbs.Device, c config) (p *pinger, err error) {
	p = &pinger{c: c, dev: dev, sink: sourceAt + c.size}
	p.mem = make([]byte, sourceAt+2*c.size)
	if p.pd, err = dev.AllocPD(); err != nil {
		return p, err
	}
	acc := verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	if p.mr, err = p.pd.RegMR(p.mem, acc); err != nil {
		return p, err
	}
	if p.ch, err = dev.CreateCompChannel(); err != nil {
		return p, err
	}
	if p.cq, err = dev.CreateCQ(verbs.CQConfig{Depth: 16, Channel: p.ch}); err != nil {
		return p, err
	}
	p.qp, err = p.pd.CreateQP(verbs.QPConfig{SendCQ: p.cq, MaxSendWR: 8, MaxRecvWR: recvs})
	if err != nil {
		return p, err
	}
	for i := range recvs {
		if err := p.receive(i); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *pinger) close() error {
	var errs []error
	if p.qp != nil {
		_, err := p.qp.Close()
		errs = append(errs, err)
	}
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	if p.ch != nil {
		errs = append(errs, p.ch.Close())
	}
	if p.mr != nil {
		errs = append(errs, p.mr.Deregister())
	}
	if p.pd != nil {
		errs = append(errs, p.pd.Close())
	}
	return errors.Join(errs...)
}

func (p *pinger) sge(at, n int) []verbs.SGE {
	return []verbs.SGE{{MR: p.mr, Offset: uint64(at), Length: uint32(n)}}
}

// Kinds of work requests; a receive's wr_id is its place, from recvID on.
const (
	sendID = 1
	opID   = 2
	recvID = 100
)

func (p *pinger) receive(i int) error {
	_, err := p.qp.PostRecv([]verbs.RecvWR{{WRID: uint64(recvID + i), SGEs: p.sge(inAt+i*advLen, advLen)}})
	return err
}

// completion waits for the completion of a send or a one-sided request, or, with recvID, for a receive, and returns its
// place. Receives that come meanwhile are kept.
func (p *pinger) completion(ctx context.Context, id uint64) (int, error) {
	for {
		if id == recvID && len(p.got) > 0 {
			i := p.got[0]
			p.got = p.got[1:]
			return i, nil
		}
		var wc [1]verbs.WC
		n, err := p.cq.Poll(wc[:])
		if err == nil && n == 0 {
			if err = p.cq.ReqNotify(false); err == nil {
				if n, err = p.cq.Poll(wc[:]); err == nil && n == 0 {
					_, err = p.ch.Wait(ctx)
				}
			}
		}
		switch {
		case err != nil:
			return 0, err
		case n == 0:
		case wc[0].Status == verbs.StatusWRFlushErr:
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
	b := p.mem[outAt:][:advLen]
	binary.BigEndian.PutUint64(b, p.mr.Addr()+uint64(at))
	binary.BigEndian.PutUint32(b[8:], p.mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(n))
	_, err := p.qp.PostSend([]verbs.SendWR{{WRID: sendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGEs: p.sge(outAt, advLen)}})
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
	b := p.mem[inAt+i*advLen:][:advLen]
	addr, rkey, n = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), int(binary.BigEndian.Uint32(b[12:]))
	return addr, rkey, n, p.receive(i)
}

// ping is the client.
func (p *pinger) ping(ctx context.Context) error {
	if _, err := p.qp.Connect(ctx, p.c.addr, verbs.ConnParam{IRD: 1, ORD: 1}); err != nil {
		return err
	}
	source, sink := p.mem[sourceAt:][:p.c.size], p.mem[p.sink:][:p.c.size]
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
	return p.qp.Disconnect()
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
	l, err := p.dev.Listen(ctx, p.c.addr)
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
	if err := r.Accept(ctx, p.qp, verbs.ConnParam{IRD: 1, ORD: 1}); err != nil {
		return err
	}
	for round := 0; ; round++ {
		n, err := p.answer(ctx, verbs.OpRead)
		if errors.Is(err, errGone) && (p.c.count == 0 || round == p.c.count) {
			return nil
		}
		if err == nil {
			p.print("server ping data: ", p.mem[sourceAt:][:n])
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
	_, err = p.qp.PostSend([]verbs.SendWR{{
		WRID: opID, Opcode: op, Flags: verbs.SendSignaled, SGEs: p.sge(sourceAt, n), RemoteAddr: addr, RKey: rkey,
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
