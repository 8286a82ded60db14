package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// entity is one end: a messenger on its host.
type entity struct {
	*host
	m *messenger.Messenger
}

// newEntity leaves checksums to the messenger; the device makes none.
func newEntity(name string, crc bool, d messenger.Dispatcher) (*entity, error) {
	entityName, err := messenger.ParseEntityName(name)
	if err != nil {
		return nil, err
	}
	h, err := newHost(iwarp.CRCAuto)
	if err != nil {
		return nil, err
	}
	m, err := messenger.New(messenger.Config{
		Name:  entityName,
		Arena: h.arena,
		Transports: []messenger.Transport{{
			Scheme: messenger.SchemeIWARP,
			Open: func(cfg conn.Config) (*conn.Endpoint, error) {
				return conn.NewEndpoint(h.dev, h.arena, cfg)
			},
		}},
		NoDataCRC: !crc,
	})
	if err != nil {
		return nil, errors.Join(err, h.close(nil))
	}
	m.AddDispatcher(d)
	return &entity{h, m}, nil
}

func (e *entity) close() error { return e.host.close(e.m.Shutdown) }

func (e *entity) addr() string { return e.m.Addrs()[0].URL }

// newServer makes an entity that listens, and counts and answers what it gets.
func newServer(crc bool, s *sink) (*entity, error) {
	e, err := newEntity("osd.0", crc, s)
	if err != nil {
		return nil, err
	}
	addrs, err := messenger.ParseAddrs("iwarp://127.0.0.1:0")
	if err == nil {
		err = e.m.Bind(context.Background(), addrs)
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func newMessengerEcho() (*entity, error) { return newServer(true, &sink{}) }

// join connects a client to the server at addr.
func join(ctx context.Context, client *entity, addr string) (*messenger.Connection, error) {
	addrs, err := messenger.ParseAddrs(addr)
	if err != nil {
		return nil, err
	}
	c, err := client.m.ConnectTo(messenger.OSD, addrs)
	if err != nil {
		return nil, err
	}
	return c, c.Ready(ctx)
}

const (
	typeData = 1
	typePing = 2
	typeLast = 3
	typeBall = 4
)

// sink counts what arrives, sends typeBall back, and answers typePing and
// typeLast, which says that all is there.
type sink struct {
	messenger.BaseDispatcher
	first, last, bytes atomic.Int64
}

func (s *sink) FastDispatch(m *messenger.Message) bool {
	switch m.Type {
	case typeData:
		now := time.Now().UnixNano()
		s.first.CompareAndSwap(0, now)
		s.last.Store(now)
		s.bytes.Add(m.Data.Len())
		m.Release()
		return true
	case typeBall:
		if err := sendBall(m.Conn, m.Front); err != nil {
			panic(err)
		}
		m.Release()
		return true
	case typePing, typeLast:
		r := messenger.NewMessage(m.Type)
		r.Front = append(r.Front, m.Front...)
		if err := m.Reply(context.Background(), r); err != nil {
			r.Release()
		}
		m.Release()
		return true
	}
	return false
}

// messengerStream sends messages with payloads of size bytes one way for d and
// returns bytes per second as the receiver counts them.
func messengerStream(size int, crc bool, d time.Duration) (r result, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+30*time.Second)
	defer cancel()
	var s sink
	server, err := newServer(crc, &s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	client, err := newEntity("client.1", crc, messenger.BaseDispatcher{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	c, err := join(ctx, client, server.addr())
	if err != nil {
		return r, err
	}
	return stream(ctx, client, c, &s, size, d)
}

// stream sends messages with payloads of size bytes to s over c for d.
func stream(ctx context.Context, client *entity, c *messenger.Connection, s *sink, size int, d time.Duration) (r result, err error) {
	lists := make([]*buffer.List, tcpDepth)
	owner := client.arena.Owner("stream", 0)
	for i := range lists {
		if lists[i], err = client.arena.GetList(ctx, int64(size), owner); err != nil {
			return r, err
		}
		defer lists[i].Release()
	}
	sent := 0
	for mt := newMeter(d); ; sent++ {
		if !mt.next(sent) {
			r.allocs = mt.perMessage(sent)
			break
		}
		m := messenger.NewMessage(typeData)
		m.Data = lists[sent%tcpDepth].Share()
		if err := c.Send(ctx, m); err != nil {
			m.Release()
			return r, err
		}
	}
	if err := call(ctx, c, typeLast, nil); err != nil {
		return r, err
	}
	r.value = float64(s.bytes.Load()) / time.Duration(s.last.Load()-s.first.Load()).Seconds()
	return r, nil
}

// player answers typeBall with the next one until its meter says enough.
type player struct {
	messenger.BaseDispatcher
	mt   *meter
	n    int
	done chan error
}

func (p *player) FastDispatch(m *messenger.Message) bool {
	if m.Type != typeBall {
		return false
	}
	defer m.Release()
	if p.n++; !p.mt.next(p.n) {
		p.done <- nil
		return true
	}
	if err := sendBall(m.Conn, m.Front); err != nil {
		p.done <- err
	}
	return true
}

func sendBall(c *messenger.Connection, front []byte) error {
	m := messenger.NewMessage(typeBall)
	m.Front = append(m.Front, front...)
	ok, err := c.TrySend(m)
	if !ok {
		m.Release()
		err = errors.Join(err, errors.New("ping: cannot send"))
	}
	return err
}

// messengerPing bounces messages of pingSize bytes for d and returns seconds per
// round trip. Both ends answer in FastDispatch.
func messengerPing(d time.Duration) (r result, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+30*time.Second)
	defer cancel()
	server, err := startChild("messenger")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	p := &player{done: make(chan error, 1)}
	client, err := newEntity("client.1", true, p)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	c, err := join(ctx, client, server.at)
	if err != nil {
		return r, err
	}
	p.mt = newMeter(d)
	begin := time.Now()
	if err := sendBall(c, make([]byte, pingSize)); err != nil {
		return r, err
	}
	if err := <-p.done; err != nil {
		return r, err
	}
	r.value = time.Since(begin).Seconds() / float64(p.n)
	r.allocs = p.mt.perMessage(p.n)
	return r, nil
}

// messengerCall makes calls of pingSize bytes for d and returns seconds per call.
// A goroutine waits for each reply.
func messengerCall(d time.Duration) (r result, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+30*time.Second)
	defer cancel()
	server, err := startChild("messenger")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	client, err := newEntity("client.1", true, messenger.BaseDispatcher{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	c, err := join(ctx, client, server.at)
	if err != nil {
		return r, err
	}
	front := make([]byte, pingSize)
	begin, n := time.Now(), 0
	for mt := newMeter(d); ; n++ {
		if !mt.next(n) {
			r.allocs = mt.perMessage(n)
			break
		}
		if err := call(ctx, c, typePing, front); err != nil {
			return r, err
		}
	}
	r.value = time.Since(begin).Seconds() / float64(n)
	return r, nil
}

func call(ctx context.Context, c *messenger.Connection, typ uint16, front []byte) error {
	m := messenger.NewMessage(typ)
	m.Front = append(m.Front, front...)
	r, err := c.Call(ctx, m)
	if err != nil {
		m.Release()
		return err
	}
	r.Release()
	return nil
}
