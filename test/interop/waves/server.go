package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/interop/internal/bare"
)

// Times within which a wave is over, and within which nothing is left of it: siw lets go of a connection that was being
// made after 10 s.
const (
	waveLimit  = 3 * time.Minute
	quietLimit = time.Minute
)

// server is the endpoint that the clients connect to.
type server struct {
	o        *options
	ep       *conn.Endpoint
	arena    *buffer.Arena
	rng      *rand.Rand
	accepted atomic.Int64
	messages atomic.Int64
	cutEach  atomic.Int64 // the server cuts a connection at each so many messages
	cuts     atomic.Int64
}

func (s *server) onMessage(c *conn.Conn, m conn.Message) {
	n := s.messages.Add(1)
	if n%s.cutEach.Load() == 0 {
		s.cuts.Add(1)
		m.Payload.Release()
		_ = c.Close() // never fails
		return
	}
	if ok, err := c.TrySend(m); !ok || err != nil { // it has gone; each has one message under way
		m.Payload.Release()
	}
}

// waves is all of it. say gets a line for each wave.
func waves(ctx context.Context, o *options, say func(string)) (err error) {
	say(fmt.Sprintf("seed %d", o.seed))
	dev, err := bare.Open(o.device, o.addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	arena, err := buffer.New(buffer.Config{Budget: 64 << 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, arena.Close(context.WithoutCancel(ctx))) }()
	s := &server{o: o, arena: arena, rng: rand.New(rand.NewPCG(o.seed, 0))}
	cfg := endpointConfig()
	cfg.OnMessage = s.onMessage
	cfg.Logger = slog.New(refusals{slog.NewTextHandler(os.Stderr, nil)})
	cfg.OnAccept = func(*conn.Conn) bool { s.accepted.Add(1); return true }
	if s.ep, err = conn.NewEndpoint(dev, arena, cfg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.ep.Shutdown(context.WithoutCancel(ctx))) }()
	if err := s.ep.Listen(ctx, net.JoinHostPort(o.addr, "0")); err != nil {
		return err
	}
	before, err := s.held(ctx)
	if err != nil {
		return err
	}
	for wave := 0; s.accepted.Load() < int64(o.n); wave++ {
		killed, err := s.wave(ctx)
		if err == nil {
			err = s.quiet(ctx, before)
		}
		if err != nil {
			return fmt.Errorf("wave %d: %w", wave, err)
		}
		say(fmt.Sprintf("wave %d: %d killed; so far %d connections, %d messages, %d cut by the server", wave, killed,
			s.accepted.Load(), s.messages.Load(), s.cuts.Load()))
	}
	st := s.ep.Stats()
	say(fmt.Sprintf("done: accepted %d, faults %v, late receives %d, orphans %d; the kernel holds what it held: %s",
		st.Accepted, st.Faults, st.LateReceives, st.Orphans, before))
	return nil
}

// wave starts the clients of one wave and waits for them. Some are killed when the server has got a certain number of
// messages, or, if there are fewer, at the end.
func (s *server) wave(ctx context.Context) (killed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, waveLimit)
	defer cancel()
	s.cutEach.Store(int64(50 + s.rng.IntN(100)))
	type process struct {
		cmd *exec.Cmd
		out bytes.Buffer
		die int64 // when the server has got so many messages; 0: not
	}
	all := make([]*process, s.o.processes)
	ended := make(chan *process, len(all))
	for i := range all {
		args := []string{
			"-device", s.o.device, "-addr", s.o.addr, "-conns", fmt.Sprint(s.o.conns),
			"-peer", s.ep.Addr().String(), fmt.Sprintf("-cut=%v", i%2 == 0),
		}
		args = append(s.o.self[1:len(s.o.self):len(s.o.self)], args...)
		p := &process{cmd: exec.CommandContext(ctx, s.o.self[0], args...)}
		p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
		if s.rng.IntN(3) == 0 {
			p.die = s.messages.Load() + 1 + s.rng.Int64N(int64(s.o.processes*s.o.conns*rounds/2))
		}
		if err := p.cmd.Start(); err != nil {
			return killed, err
		}
		all[i] = p
	}
	for _, p := range all {
		go func() { // ends with the process
			_ = p.cmd.Wait() // ProcessState says it all
			ended <- p
		}()
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for left := len(all); left > 0; {
		select {
		case <-tick.C:
			for _, p := range all {
				if p.die > 0 && s.messages.Load() >= p.die {
					p.die = -1
					killed++
					_ = p.cmd.Process.Kill() // it may have ended
				}
			}
		case p := <-ended:
			left--
			if !p.cmd.ProcessState.Success() && p.die != -1 {
				err = errors.Join(err, fmt.Errorf("a client: %v: %s", p.cmd.ProcessState, p.out.Bytes()))
			}
		}
	}
	return killed, errors.Join(err, ctx.Err())
}

// quiet waits until the endpoint has no connection and the kernel holds what it held before.
func (s *server) quiet(ctx context.Context, before string) error {
	ctx, cancel := context.WithTimeout(ctx, quietLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := s.held(ctx)
		if err != nil {
			return err
		}
		if now == before && s.ep.Stats().Conns == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d connections; the kernel holds %s and held %s", errLeft, s.ep.Stats().Conns, now, before)
		}
	}
}

// held is the kernel's account for the device: queue pairs and identifiers, which a connection has of its own. (Queues
// that connections share stay with the endpoint.) Empty for the adapter in software.
func (s *server) held(ctx context.Context) (string, error) {
	if s.o.device == "iwarp" {
		return "", nil
	}
	var counts []string
	for _, kind := range []string{"qp", "cm_id"} {
		out, err := exec.CommandContext(ctx, "rdma", "resource", "show", kind, "link", s.o.device).Output()
		if err != nil {
			return "", fmt.Errorf("rdma resource show %s: %w", kind, err)
		}
		n := 0
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "comm [") { // the kernel's own
				continue
			}
			n++
		}
		counts = append(counts, fmt.Sprintf("%s %d", kind, n))
	}
	return strings.Join(counts, ", "), nil
}

// refusals is a handler of what tells why a connection was refused, and of nothing else.
type refusals struct{ slog.Handler }

func (r refusals) Handle(ctx context.Context, rec slog.Record) error {
	if rec.Message != "connection refused" {
		return nil
	}
	return r.Handler.Handle(ctx, rec)
}
