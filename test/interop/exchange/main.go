// Command exchange is one of two entities that send each other messages over a
// lossless session, whatever happens to the path between them, and, if asked, call
// each other meanwhile and cut connections themselves. Each checks that the
// other's messages and calls come once, in order, and unchanged, and that its own
// calls are answered; it ends when it has got all of that and the other has got its
// own, and fails if that takes too long or if something is left at the end.
//
//	exchange -device rxe0 -addr rdma://10.8.0.1:7501 -accept
//	exchange -device rxe0 -addr rdma://10.8.0.2:7501 -peer rdma://10.8.0.1:7501
//
// The adapter in software talks to an iWARP device of the kernel at rdma:// too:
//
//	exchange -device iwarp -addr rdma://10.9.0.1:7601 -accept
//	exchange -device siw0 -addr rdma://10.9.0.1:7602 -peer rdma://10.9.0.1:7601
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
	calls  int
	cut    int // one in so many frames ends a connection; 0: none
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
	flag.IntVar(&o.calls, "calls", 0, "calls in each direction, one after the other, beside the messages")
	flag.IntVar(&o.cut, "cut", 0, "cut the connection at one in so many frames, 0: never")
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
	typeCall = 3 // as typeData; its answer has the same front, with the CRC32C of what came
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// party is the receiving side.
type party struct {
	messenger.BaseDispatcher
	n    int
	stop func(error) // ends the exchange; the first error is what it fails with
	// begun is called when the first message has come.
	begun func()

	mu      sync.Mutex
	conn    *messenger.Connection
	met     chan struct{} // closed when conn is set
	got     int
	called  int
	gotAll  chan struct{}
	ended   chan struct{} // the other has got everything
	isEnded bool
}

// cutter ends the transport with one in o.cut messages that come, until the last
// has: whoever has everything leaves, and can not be asked any more whether it has
// what was cut off on the way.
func (p *party) cutter(o options) func(messenger.Step) error {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(o.seed, 3))
	return func(s messenger.Step) error {
		mu.Lock()
		defer mu.Unlock()
		p.mu.Lock()
		ended := p.isEnded
		p.mu.Unlock()
		if s.Frame == "MESSAGE" && !ended && rng.IntN(o.cut) == 0 {
			return errors.New("cut on purpose")
		}
		return nil
	}
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

func (p *party) Dispatch(ctx context.Context, m *messenger.Message) bool {
	defer m.Release()
	answer, err := p.take(m)
	if err == nil && answer != nil {
		if err = m.Reply(ctx, answer); err != nil {
			answer.Release()
			err = fmt.Errorf("answer: %w", err)
		}
	}
	if err != nil {
		p.stop(err)
	}
	return true
}

// take takes note of a message and returns the answer of a call.
func (p *party) take(m *messenger.Message) (answer *messenger.Message, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m.Type {
	case typeEnd:
		if !p.isEnded {
			p.isEnded = true
			close(p.ended)
		}
	case typeData:
		if err := check(m, p.got); err != nil {
			return nil, err
		}
		if p.got++; p.got == 1 {
			p.begun()
		}
		if p.got == p.n {
			close(p.gotAll)
		}
	case typeCall:
		if err := check(m, p.called); err != nil {
			return nil, fmt.Errorf("call: %w", err)
		}
		p.called++
		answer = messenger.NewMessage(typeCall)
		answer.Front = append(answer.Front, m.Front...)
	default:
		return nil, fmt.Errorf("a message of type %d", m.Type)
	}
	return answer, nil
}

// check holds a message against what its front says, and against its place.
func check(m *messenger.Message, place int) error {
	if len(m.Front) != frontLen {
		return fmt.Errorf("a message of type %d with a front of %d bytes", m.Type, len(m.Front))
	}
	if i := binary.LittleEndian.Uint64(m.Front); i != uint64(place) {
		return fmt.Errorf("message %d came as number %d", i, place)
	}
	sum := uint32(0)
	if m.Data != nil {
		for i := range m.Data.Segments() {
			sum = crc32.Update(sum, castagnoli, m.Data.At(i).Bytes())
		}
	}
	if want := binary.LittleEndian.Uint32(m.Front[8:]); sum != want {
		return fmt.Errorf("message %d: CRC 0x%08x, sent was 0x%08x", place, sum, want)
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
	p := &party{
		n: o.n, stop: func(e error) { stop(e) }, begun: func() {
			if o.report != nil {
				o.report("under way")
			}
		},
		met: make(chan struct{}), gotAll: make(chan struct{}), ended: make(chan struct{}),
	}
	if o.cut > 0 {
		cfg.Inject = &messenger.Inject{Step: p.cutter(o)}
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
	return errors.Join(verdict(ctx, p.run(ctx, m, arena, o)), shutdown(m))
}

// verdict is how the exchange went: what stop was called with first, if it was, whatever run says; run need not have noticed.
func verdict(ctx context.Context, run error) error {
	cause := context.Cause(ctx)
	switch {
	case cause == nil || errors.Is(run, cause):
		return run
	case run == nil:
		return cause
	default:
		return fmt.Errorf("%w (%w)", cause, run)
	}
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
	called := make(chan error, 1)
	go func() { called <- p.call(ctx, newSource(arena, o, 2), o.calls) }() // ends with the calls, or with ctx
	bytes, err := p.send(ctx, newSource(arena, o, 1), o.n)
	if err != nil {
		p.stop(err)
	}
	if cerr := <-called; err == nil {
		err = cerr
	}
	if err != nil {
		return err
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
		o.report(fmt.Sprintf("%d messages and %d calls each way, %d bytes sent, in %v; connections made again %d, messages sent again %d, duplicates dropped %d",
			o.n, o.calls, bytes, time.Since(begin).Round(time.Millisecond), st.Reconnects, st.Replayed, st.Duplicates))
	}
	return nil
}

// frontLen is the front of a message: index and CRC32C of the data.
const frontLen = 12

// source makes messages of log-uniform size.
type source struct {
	arena *buffer.Arena
	owner buffer.Owner
	rng   *rand.Rand
	size  int
	noise []byte
}

func newSource(arena *buffer.Arena, o options, stream uint64) *source {
	s := &source{
		arena: arena, owner: arena.Owner("exchange", 0), rng: rand.New(rand.NewPCG(o.seed, stream)),
		size: o.size, noise: make([]byte, o.size+256),
	}
	for i := range s.noise {
		s.noise[i] = byte(s.rng.Uint32())
	}
	return s
}

// message makes message i of a type.
func (s *source) message(ctx context.Context, typ uint16, i int) (m *messenger.Message, size int, err error) {
	size = int(math.Exp(s.rng.Float64()*math.Log(float64(s.size+1)))) - 1
	m = messenger.NewMessage(typ)
	m.Front = binary.LittleEndian.AppendUint64(m.Front, uint64(i))
	at := s.rng.IntN(256)
	m.Front = binary.LittleEndian.AppendUint32(m.Front, crc32.Checksum(s.noise[at:at+size], castagnoli))
	if size > 0 {
		if m.Data, err = s.arena.GetList(ctx, int64(size), s.owner); err != nil {
			m.Release()
			return nil, 0, err
		}
		for k := range m.Data.Segments() {
			b := m.Data.At(k).Bytes()
			at += copy(b, s.noise[at:at+len(b)])
		}
	}
	return m, size, nil
}

// send sends n messages.
func (p *party) send(ctx context.Context, s *source, n int) (bytes int64, err error) {
	for i := range n {
		m, size, err := s.message(ctx, typeData, i)
		if err != nil {
			return bytes, fmt.Errorf("message %d: %w", i, err)
		}
		if err := p.conn.Send(ctx, m); err != nil {
			m.Release()
			return bytes, fmt.Errorf("send message %d: %w", i, err)
		}
		bytes += int64(size)
	}
	return bytes, nil
}

// call makes n calls, one after the other.
func (p *party) call(ctx context.Context, s *source, n int) error {
	for i := range n {
		m, _, err := s.message(ctx, typeCall, i)
		if err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
		front := append([]byte(nil), m.Front...)
		r, err := p.conn.Call(ctx, m)
		if err != nil {
			m.Release()
			return fmt.Errorf("call %d: %w", i, err)
		}
		same := string(r.Front) == string(front)
		r.Release()
		if !same {
			return fmt.Errorf("call %d got the answer of another", i)
		}
	}
	return nil
}

// open opens the device; nil is none.
func open(o options) (*verbs.Device, string, error) {
	if o.device == "tcp" {
		return nil, messenger.SchemeTCP, nil
	}
	addrs, err := messenger.ParseAddrs(o.addr)
	if err != nil {
		return nil, "", err
	}
	if o.device == "iwarp" {
		d, err := iwarp.Open(iwarp.Config{})
		return d, addrs[0].Scheme(), err // that of the devices of the kernel, where it is to talk to one
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
