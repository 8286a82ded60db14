package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// node is one end: an endpoint on its host.
type node struct {
	*host
	ep *conn.Endpoint
}

func newNode(crc bool, cfg conn.Config) (*node, error) {
	policy := iwarp.CRCAuto
	if crc {
		policy = iwarp.CRCOn
	}
	h, err := newHost(policy)
	if err != nil {
		return nil, err
	}
	ep, err := conn.NewEndpoint(h.dev, h.arena, cfg)
	if err != nil {
		return nil, errors.Join(err, h.close(nil))
	}
	return &node{h, ep}, nil
}

func (n *node) close() error { return n.host.close(n.ep.Shutdown) }

// connStream sends payloads of size bytes one way for d and returns bytes per
// second as the receiver counts them.
func connStream(size int, crc bool, d time.Duration) (r result, err error) {
	var first, last atomic.Int64 // unix nanoseconds
	var bytes atomic.Int64
	done := make(chan struct{})
	server, err := newNode(crc, conn.Config{
		OnMessage: func(_ *conn.Conn, m conn.Message) {
			now := time.Now().UnixNano()
			first.CompareAndSwap(0, now)
			last.Store(now)
			bytes.Add(m.Payload.Len())
			m.Payload.Release()
		},
		OnFault: func(*conn.Conn, error) { close(done) },
	})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	client, err := newNode(crc, conn.Config{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	c, err := connect(client, server)
	if err != nil {
		return r, err
	}
	ctx := context.Background()
	owner := client.arena.Owner("stream", 0)
	lists := make([]*buffer.List, tcpDepth)
	for i := range lists {
		if lists[i], err = client.arena.GetList(ctx, int64(size), owner); err != nil {
			return r, err
		}
		defer lists[i].Release()
	}
	var head [8]byte
	sent := 0
	for mt := newMeter(d); ; sent++ {
		if !mt.next(sent) {
			r.allocs = mt.perMessage(sent)
			break
		}
		l := lists[sent%tcpDepth].Share()
		if err := c.Send(ctx, conn.Message{Head: head[:], Payload: l}); err != nil {
			l.Release()
			return r, err
		}
	}
	if err := c.Shutdown(ctx); err != nil {
		return r, err
	}
	<-done
	r.value = float64(bytes.Load()) / time.Duration(last.Load()-first.Load()).Seconds()
	return r, nil
}

// answer sends a head back from where it has come in.
func answer(c *conn.Conn, m conn.Message) {
	if ok, err := c.TrySend(conn.Message{Head: m.Head}); !ok || err != nil {
		panic(fmt.Sprint("ping: cannot answer: ", ok, err))
	}
}

// newConnEcho makes a node that sends heads back.
func newConnEcho() (*node, error) {
	n, err := newNode(false, conn.Config{OnMessage: answer})
	if err != nil {
		return nil, err
	}
	if err := n.ep.Listen(context.Background(), "127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) addr() string { return n.ep.Addr().String() }

// connPing bounces heads of pingSize bytes for d and returns seconds per round
// trip. Both ends answer in OnMessage.
func connPing(d time.Duration) (r result, err error) {
	server, err := startChild("conn")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	n := 0
	mt := newMeter(d)
	done := make(chan struct{})
	client, err := newNode(false, conn.Config{OnMessage: func(c *conn.Conn, m conn.Message) {
		if n++; !mt.next(n) {
			close(done)
			return
		}
		answer(c, m)
	}})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	c, err := client.dial(server.at)
	if err != nil {
		return r, err
	}
	ctx := context.Background()
	mt = newMeter(d)
	begin := time.Now()
	if err := c.Send(ctx, conn.Message{Head: make([]byte, pingSize)}); err != nil {
		return r, err
	}
	<-done
	r.value = time.Since(begin).Seconds() / float64(n)
	r.allocs = mt.perMessage(n)
	return r, c.Shutdown(ctx)
}

func connect(client, server *node) (*conn.Conn, error) {
	if err := server.ep.Listen(context.Background(), "127.0.0.1:0"); err != nil {
		return nil, err
	}
	return client.dial(server.addr())
}

func (n *node) dial(addr string) (*conn.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return n.ep.Dial(ctx, addr)
}
