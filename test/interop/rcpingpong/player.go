package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs"
)

const (
	recvs  = 64
	sendID = 1
	recvID = 2
)

// player is one end: a queue pair with receives posted.
type player struct {
	c   config
	pd  *verbs.PD
	mr  *verbs.MR
	ch  *verbs.CompChannel
	cq  *verbs.CQ
	qp  *verbs.QP
	mem []byte // what is sent, then what is received
}

// newPlayer makes everything but the connection. What it returns is to be closed, also on an error.
func newPlayer(dev *verbs.Device, c config) (p *player, err error) {
	p = &player{c: c, mem: make([]byte, 2*c.size)}
	if p.pd, err = dev.AllocPD(); err != nil {
		return p, err
	}
	if p.mr, err = p.pd.RegMR(p.mem, verbs.AccessLocalWrite); err != nil {
		return p, err
	}
	if p.ch, err = dev.CreateCompChannel(); err != nil {
		return p, err
	}
	if p.cq, err = dev.CreateCQ(verbs.CQConfig{Depth: recvs + 2, Channel: p.ch}); err != nil {
		return p, err
	}
	if p.qp, err = p.pd.CreateQP(verbs.QPConfig{SendCQ: p.cq, MaxSendWR: 2, MaxRecvWR: recvs}); err != nil {
		return p, err
	}
	for range recvs {
		if err := p.receive(); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *player) close() error {
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

func (p *player) receive() error {
	_, err := p.qp.PostRecv([]verbs.RecvWR{{WRID: recvID, SGEs: []verbs.SGE{{MR: p.mr, Offset: uint64(p.c.size), Length: uint32(p.c.size)}}}})
	return err
}

func (p *player) send() error {
	_, err := p.qp.PostSend([]verbs.SendWR{{
		WRID: sendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGEs: []verbs.SGE{{MR: p.mr, Length: uint32(p.c.size)}},
	}})
	return err
}

// play sends and receives the messages in turn. One is sent when the one before has completed and one has come.
func (p *player) play(ctx context.Context, client bool) error {
	sent, received, mayAnswer := 0, 0, client
	sending := false
	for sent < p.c.count || received < p.c.count {
		if mayAnswer && !sending && sent < p.c.count {
			if err := p.send(); err != nil {
				return err
			}
			mayAnswer, sending = false, true
		}
		wc, err := p.completion(ctx)
		if err != nil {
			return fmt.Errorf("after %d sent and %d received: %w", sent, received, err)
		}
		if wc.WRID == sendID {
			sent++
			sending = false
			continue
		}
		if int(wc.ByteLen) != p.c.size {
			return fmt.Errorf("a message of %d bytes", wc.ByteLen)
		}
		received++
		mayAnswer = true
		if err := p.receive(); err != nil {
			return err
		}
	}
	return nil
}

// completion waits for one and returns it if it is of a success.
func (p *player) completion(ctx context.Context) (verbs.WC, error) {
	var wcs [1]verbs.WC
	for armed := false; ; {
		n, err := p.cq.Poll(wcs[:])
		if err != nil {
			return wcs[0], err
		}
		if n == 1 {
			return wcs[0], verbs.WCErr(&wcs[0])
		}
		if !armed {
			if err := p.cq.ReqNotify(false); err != nil {
				return wcs[0], err
			}
			armed = true
			continue
		}
		if _, err := p.ch.Wait(ctx); err != nil {
			return wcs[0], err
		}
		armed = false
	}
}
