package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/interop/internal/bare"
)

const (
	rounds     = 10      // messages of a connection
	maxPayload = 4 << 10 // bytes
)

// endpoint of either side: many connections in little memory.
func endpointConfig() conn.Config {
	return conn.Config{RecvSize: 8 << 10, Credits: 8, SendDepth: 16, OpDepth: 4, Rendezvous: -1}
}

// echo is the user value of a client's connection.
type echo struct {
	heard chan []byte // head and payload of a message
	ended chan struct{}
}

// client opens its connections, has messages come back on each of them, all at the same time, and ends them. A
// connection that the server has cut is no failure.
func client(ctx context.Context, o *options, peer string, cut bool) (err error) {
	dev, err := bare.Open(o.device, o.addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	arena, err := buffer.New(buffer.Config{Budget: 16 << 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, arena.Close(ctx)) }()
	cfg := endpointConfig()
	cfg.OnMessage = func(c *conn.Conn, m conn.Message) {
		b := append(make([]byte, 0, len(m.Head)+maxPayload), m.Head...)
		if m.Payload != nil {
			b = b[:len(m.Head)+int(m.Payload.Len())]
			m.Payload.CopyTo(b[len(m.Head):])
			m.Payload.Release()
		}
		c.User().(*echo).heard <- b
	}
	cfg.OnFault = func(c *conn.Conn, _ error) { close(c.User().(*echo).ended) }
	ep, err := conn.NewEndpoint(dev, arena, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Shutdown(ctx)) }()
	var wg sync.WaitGroup
	errs := make([]error, o.conns)
	for i := range errs {
		wg.Go(func() {
			if err := use(ctx, ep, arena, peer, cut); err != nil {
				errs[i] = fmt.Errorf("connection %d: %w", i, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func use(ctx context.Context, ep *conn.Endpoint, arena *buffer.Arena, peer string, cut bool) error {
	e := &echo{heard: make(chan []byte, 1), ended: make(chan struct{})}
	c, err := ep.DialUser(ctx, peer, e)
	if err != nil {
		return cutIsFine(err)
	}
	for i := range rounds {
		if err := e.round(ctx, c, arena, i); err != nil {
			_ = c.Close()
			<-c.Done()
			return cutIsFine(err)
		}
	}
	if cut {
		err = c.Close()
		<-c.Done()
		return err
	}
	return cutIsFine(c.Shutdown(ctx))
}

// cutIsFine is nil for what the server's Close looks like from here.
func cutIsFine(err error) error {
	var f *conn.FaultError
	if errors.Is(err, io.EOF) || errors.Is(err, conn.ErrPeerClosed) || errors.As(err, &f) && f.Kind == conn.FaultPath {
		return nil
	}
	return err
}

// round sends a message and compares what comes back.
func (e *echo) round(ctx context.Context, c *conn.Conn, arena *buffer.Arena, i int) error {
	head := binary.BigEndian.AppendUint64(nil, rand.Uint64())
	l, err := arena.GetList(ctx, int64(1+rand.IntN(maxPayload)), buffer.Anonymous)
	if err != nil {
		return err
	}
	for s := range l.Segments() {
		b := l.At(s).Bytes()
		for j := range b {
			b[j] = byte(i + j)
		}
	}
	want := make([]byte, len(head)+int(l.Len()))
	l.CopyTo(want[copy(want, head):])
	if err := c.Send(ctx, conn.Message{Head: head, Payload: l}); err != nil {
		l.Release()
		return err
	}
	select {
	case got := <-e.heard:
		if !bytes.Equal(got, want) {
			return fmt.Errorf("message %d of %d bytes came back as other %d", i, len(want), len(got))
		}
		return nil
	case <-e.ended:
		return c.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
