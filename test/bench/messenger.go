package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// entity is one end: a device, an arena and a messenger.
type entity struct {
	dev   *verbs.Device
	arena *buffer.Arena
	m     *messenger.Messenger
}

// newEntity leaves checksums to the messenger; the device makes none.
func newEntity(name string, crc bool, d messenger.Dispatcher) (*entity, error) {
	dev, err := iwarp.Open(iwarp.Config{})
	if err != nil {
		return nil, err
	}
	e := &entity{dev: dev}
	if e.arena, err = buffer.New(buffer.Config{Budget: 128 * mib, Prefault: true}); err != nil {
		return nil, errors.Join(err, e.close())
	}
	entityName, err := messenger.ParseEntityName(name)
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.m, err = messenger.New(messenger.Config{
		Name:  entityName,
		Arena: e.arena,
		Transports: []messenger.Transport{{
			Scheme: messenger.SchemeIWARP,
			Open: func(cfg conn.Config) (*conn.Endpoint, error) {
				return conn.NewEndpoint(dev, e.arena, cfg)
			},
		}},
		NoDataCRC: !crc,
	})
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.m.AddDispatcher(d)
	return e, nil
}

// close reports whatever was not given back.
func (e *entity) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	if e.m != nil {
		errs = append(errs, e.m.Shutdown(ctx))
	}
	if e.arena != nil {
		if acc := e.arena.Account(); acc.Posted != 0 || acc.Held != 0 {
			errs = append(errs, fmt.Errorf("buffers left: %+v", acc))
		}
		errs = append(errs, e.arena.Close(ctx))
	}
	return errors.Join(append(errs, e.dev.Close())...)
}

// join connects a client to a server that listens.
func join(ctx context.Context, client, server *entity) (*messenger.Connection, error) {
	addrs, err := messenger.ParseAddrs("iwarp://127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if err := server.m.Bind(ctx, addrs); err != nil {
		return nil, err
	}
	c, err := client.m.ConnectTo(messenger.OSD, server.m.Addrs())
	if err != nil {
		return nil, err
	}
	return c, c.Ready(ctx)
}

const (
	typeData = 1
	typePing = 2
	typeLast = 3
)

// sink counts what arrives, and answers typeLast, which says that all is there.
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
	server, err := newEntity("osd.0", crc, &s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	client, err := newEntity("client.1", crc, messenger.BaseDispatcher{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	c, err := join(ctx, client, server)
	if err != nil {
		return r, err
	}
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

// messengerPing makes calls of size bytes for d and returns seconds per call.
func messengerPing(size int, d time.Duration) (r result, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+30*time.Second)
	defer cancel()
	server, err := newEntity("osd.0", true, &sink{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	client, err := newEntity("client.1", true, messenger.BaseDispatcher{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	c, err := join(ctx, client, server)
	if err != nil {
		return r, err
	}
	front := make([]byte, size)
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
