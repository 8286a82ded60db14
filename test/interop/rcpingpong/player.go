package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/test/interop/internal/bare"
	"github.com/argonaut-rdma/argonaut/verbs"
)

const (
	recvs  = 64
	sendID = 1
	recvID = 2
)

// player is an end whose memory is a message that is sent, then one that is received.
type player struct {
	*bare.End
	c config
}

// newPlayer makes everything but the connection, with receives posted.
func newPlayer(dev *verbs.Device, c config) (*player, error) {
	e, err := bare.New(dev, bare.Config{Mem: make([]byte, 2*c.size), Access: verbs.AccessLocalWrite, SendWR: 2, RecvWR: recvs})
	if err != nil {
		return nil, err
	}
	p := &player{e, c}
	for range recvs {
		if err := p.receive(); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

func (p *player) receive() error { return p.Recv(recvID, p.c.size, p.c.size) }

func (p *player) send() error {
	_, err := p.QP.PostSend([]verbs.SendWR{{WRID: sendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGEs: p.SGE(0, p.c.size)}})
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
	if _, err := p.Poll(ctx, wcs[:]); err != nil {
		return wcs[0], err
	}
	return wcs[0], verbs.WCErr(&wcs[0])
}
