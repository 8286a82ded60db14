// Command exchange is one of two entities that send each other messages over a
// lossless session, whatever happens to the path between them. Each checks that
// the other's messages come once, in order, and unchanged; it ends when it has
// got them all and the other has got its own, and fails if that takes too long or
// if something is left at the end.
//
//	exchange -device rxe0 -addr rdma://10.8.0.1:7501 -accept
//	exchange -device rxe0 -addr rdma://10.8.0.2:7501 -peer rdma://10.8.0.1:7501
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

type options struct {
	device string
	addr   string
	peer   string // empty: accept
	n      int
	size   int
	seed   uint64
	limit  time.Duration
	report func(string) // may be nil
	ready  func(messenger.AddrVec)
}

func main() {
	var o options
	accept := flag.Bool("accept", false, "wait for the other instead of connecting")
	flag.StringVar(&o.device, "device", "iwarp", "iwarp, tcp, or an RDMA device")
	flag.StringVar(&o.addr, "addr", "iwarp://127.0.0.1:0", "where to listen")
	flag.StringVar(&o.peer, "peer", "", "where the other listens")
	flag.IntVar(&o.n, "n", 1000, "messages in each direction")
	flag.IntVar(&o.size, "size", 256<<10, "largest payload, bytes")
	flag.Uint64Var(&o.seed, "seed", rand.Uint64(), "of the sizes and contents")
	flag.DurationVar(&o.limit, "limit", 2*time.Minute, "time for it all")
	flag.Parse()
	if *accept == (o.peer != "") {
		fmt.Fprintln(os.Stderr, "exchange: give either -accept or -peer")
		os.Exit(2)
	}
	o.report = func(s string) { fmt.Println("exchange: " + s) }
	if err := exchange(o); err != nil {
		fmt.Fprintln(os.Stderr, "exchange:", err)
		os.Exit(1)
	}
}

// Message types.
const (
	typeData = 1 // front: index, CRC32C
	typeEnd  = 2 // the sender has got everything
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// party is the receiving side.
type party struct {
	messenger.BaseDispatcher
	n    int
	stop func(error) // with the first error

	mu      sync.Mutex
	conn    *messenger.Connection
	met     chan struct{} // closed when conn is set
	got     int
	gotAll  chan struct{}
	ended   chan struct{} // the other has got everything
	isEnded bool
}

func (p *party) HandleAccept(c *messenger.Connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		p.conn = c
		close(p.met)
		return
	}
	if p.conn != c {
		p.stop(errors.New("a second connection: the session was not resumed"))
	}
}

func (p *party) HandleReset(c *messenger.Connection) {
	p.stop(fmt.Errorf("a lossless session was reset: %w", c.Err()))
}

func (p *party) HandleRemoteReset(*messenger.Connection) {
	p.stop(errors.New("the other has lost the session"))
}

func (p *party) Dispatch(_ context.Context, m *messenger.Message) bool {
	defer m.Release()
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Type == typeEnd {
		if !p.isEnded {
			p.isEnded = true
			close(p.ended)
		}
		return true
	}
	if err := p.check(m); err != nil {
		p.stop(err)
		return true
	}
	if p.got++; p.got == p.n {
		close(p.gotAll)
	}
	return true
}

func (p *party) check(m *messenger.Message) error {
	if m.Type != typeData || len(m.Front) != 12 {
		return fmt.Errorf("a message of type %d with a front of %d bytes", m.Type, len(m.Front))
	}
	if i := binary.LittleEndian.Uint64(m.Front); i != uint64(p.got) {
		return fmt.Errorf("message %d came as number %d", i, p.got)
	}
	sum := uint32(0)
	if m.Data != nil {
		for i := range m.Data.Segments() {
			sum = crc32.Update(sum, castagnoli, m.Data.At(i).Bytes())
		}
	}
	if want := binary.LittleEndian.Uint32(m.Front[8:]); sum != want {
		return fmt.Errorf("message %d: CRC 0x%08x, sent was 0x%08x", p.got, sum, want)
	}
	return nil
}

// exchange is one side, from beginning to end.
func exchange(o options) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.limit)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	dev, scheme, err := open(o)
	if err != nil {
		return err
	}
	arena, err := buffer.New(buffer.Config{Budget: 64 << 20})
	if err != nil {
		return errors.Join(err, closeDevice(dev))
	}
	cfg := messenger.Config{
		Name: messenger.EntityName{Type: messenger.OSD, Num: 1}, Arena: arena,
		BackoffMin: 50 * time.Millisecond, BackoffMax: time.Second, ConnectTimeout: 5 * time.Second,
		KeepaliveInterval: time.Second,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if o.peer == "" {
		cfg.Name.Num = 0
	}
	if dev != nil {
		cfg.Transports = []messenger.Transport{{Scheme: scheme, Open: func(c conn.Config) (*conn.Endpoint, error) {
			c.RecvSize = 64 << 10
			return conn.NewEndpoint(dev, arena, c)
		}}}
	}
	m, err := messenger.New(cfg)
	if err != nil {
		return errors.Join(err, closeArena(arena), closeDevice(dev))
	}
	defer func() {
		acc := arena.Account()
		err = errors.Join(err, closeArena(arena), closeDevice(dev))
		if err == nil && (acc.Posted != 0 || acc.Held != 0) {
			err = fmt.Errorf("memory is left: %+v", acc)
		}
	}()
	p := &party{
		n: o.n, stop: func(e error) { stop(e) },
		met: make(chan struct{}), gotAll: make(chan struct{}), ended: make(chan struct{}),
	}
	err = p.run(ctx, m, arena, o)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return errors.Join(err, shutdown(m))
}

func (p *party) run(ctx context.Context, m *messenger.Messenger, arena *buffer.Arena, o options) error {
	m.AddDispatcher(p)
	m.SetPolicy(messenger.OSD, messenger.LosslessPeer())
	addrs, err := messenger.ParseAddrs(o.addr)
	if err != nil {
		return err
	}
	if err := m.Bind(ctx, addrs); err != nil {
		return err
	}
	if o.ready != nil {
		o.ready(m.Addrs())
	}
	if o.peer != "" {
		peer, err := messenger.ParseAddrs(o.peer)
		if err != nil {
			return err
		}
		c, err := m.ConnectTo(messenger.OSD, peer)
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.conn = c
		close(p.met)
		p.mu.Unlock()
	}
	select {
	case <-p.met:
	case <-ctx.Done():
		return ctx.Err()
	}
	begin := time.Now()
	bytes, err := p.send(ctx, arena, o)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	for _, ch := range []chan struct{}{p.gotAll, p.ended} {
		select {
		case <-ch:
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			return fmt.Errorf("%d of %d messages have come; the other has all: %v: %w", p.got, p.n, p.isEnded, ctx.Err())
		}
		if ch == p.gotAll {
			if err := p.conn.Send(ctx, messenger.NewMessage(typeEnd)); err != nil {
				return fmt.Errorf("send the end: %w", err)
			}
		}
	}
	if o.report != nil {
		st := m.Stats()
		o.report(fmt.Sprintf("%d messages each way, %d bytes sent, in %v; connections made again %d, messages sent again %d, duplicates dropped %d",
			o.n, bytes, time.Since(begin).Round(time.Millisecond), st.Reconnects, st.Replayed, st.Duplicates))
	}
	return nil
}

// send sends messages of log-uniform size.
func (p *party) send(ctx context.Context, arena *buffer.Arena, o options) (bytes int64, err error) {
	rng := rand.New(rand.NewPCG(o.seed, 1))
	owner := arena.Owner("exchange", 0)
	noise := make([]byte, o.size+256)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	for i := range o.n {
		size := int(math.Exp(rng.Float64()*math.Log(float64(o.size+1)))) - 1
		m := messenger.NewMessage(typeData)
		m.Front = binary.LittleEndian.AppendUint64(m.Front, uint64(i))
		at := rng.IntN(256)
		m.Front = binary.LittleEndian.AppendUint32(m.Front, crc32.Checksum(noise[at:at+size], castagnoli))
		if size > 0 {
			if m.Data, err = arena.GetList(ctx, int64(size), owner); err != nil {
				m.Release()
				return bytes, err
			}
			for s := range m.Data.Segments() {
				b := m.Data.At(s).Bytes()
				at += copy(b, noise[at:at+len(b)])
			}
		}
		if err := p.conn.Send(ctx, m); err != nil {
			m.Release()
			return bytes, fmt.Errorf("message %d: %w", i, err)
		}
		bytes += int64(size)
	}
	return bytes, nil
}

// open opens the device; nil is none.
func open(o options) (*verbs.Device, string, error) {
	switch o.device {
	case "tcp":
		return nil, messenger.SchemeTCP, nil
	case "iwarp":
		d, err := iwarp.Open(iwarp.Config{})
		return d, messenger.SchemeIWARP, err
	}
	addrs, err := messenger.ParseAddrs(o.addr)
	if err != nil {
		return nil, "", err
	}
	host, _, err := net.SplitHostPort(addrs[0].HostPort())
	if err != nil {
		return nil, "", err
	}
	d, err := ibverbs.Open(ibverbs.Config{Device: o.device, Addr: host})
	return d, messenger.SchemeRDMA, err
}

const closing = 20 * time.Second

func shutdown(m *messenger.Messenger) error {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	return m.Shutdown(ctx)
}

func closeArena(a *buffer.Arena) error {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	return a.Close(ctx)
}

func closeDevice(d *verbs.Device) error {
	if d == nil {
		return nil
	}
	return d.Close()
}
