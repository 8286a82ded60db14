package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/interop/internal/bare"
	"github.com/argonaut-rdma/argonaut/verbs"
)

const pingSize = 64

// spin has a poller never sleep.
const spin = time.Minute

// Kinds of streams, which are kinds of children too.
const (
	eager = "stream"
	// fetched is a stream whose payload the receiver READs, by the key of a whole region where the device has no
	// narrower one: the fabric is trusted.
	fetched = "fetched"
)

// node is one end that talks over Conns.
type node struct {
	dev     *verbs.Device
	arena   *buffer.Arena
	exposed *buffer.Arena // payload that peers READ; nil: it is sent
	ep      *conn.Endpoint
}

// payload is the arena of what is streamed.
func (n *node) payload() *buffer.Arena {
	if n.exposed != nil {
		return n.exposed
	}
	return n.arena
}

func newNode(o *options, kind string, cfg conn.Config) (_ *node, err error) {
	dev, err := bare.Open(o.device, o.addr)
	if err != nil {
		return nil, err
	}
	arena, err := buffer.New(buffer.Config{Budget: 64 * mib, Prefault: true})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	n := &node{dev: dev, arena: arena}
	if kind == fetched {
		n.exposed, err = buffer.New(buffer.Config{Budget: 16 * mib, Prefault: true, TrustFabric: true})
		cfg.Exposed, cfg.EagerMax = n.exposed, -1
	}
	if err == nil {
		n.ep, err = conn.NewEndpoint(dev, arena, cfg)
	}
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// close closes what there is.
func (n *node) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var errs []error
	if n.ep != nil {
		errs = append(errs, n.ep.Shutdown(ctx))
	}
	if n.exposed != nil {
		errs = append(errs, n.exposed.Close(ctx))
	}
	return errors.Join(append(errs, n.arena.Close(ctx), n.dev.Close())...)
}

// child is the other end, in a process of its own: perf with -child.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Reader
	at  string // the first line that it has said
}

func startChild(o *options, kind string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.Background(), exe, "-device", o.device, "-addr", o.addr, "-profile", o.profile,
		"-credits", strconv.Itoa(o.credits), "-child", kind)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, in: in, out: bufio.NewReader(out)}
	if c.at, err = c.line(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *child) line() (string, error) {
	s, err := c.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

func (c *child) close() error { return errors.Join(c.in.Close(), c.cmd.Wait()) }

// serve is what the child does until its standard input ends.
func serve(o *options, kind string) error {
	if kind == "read" {
		return serveRead(o)
	}
	var cfg conn.Config
	count := new(counter)
	switch kind {
	case eager, fetched:
		cfg.Credits = o.credits
		cfg.OnMessage = count.message
		cfg.OnFault = func(*conn.Conn, error) { fmt.Println(count.rate()) }
	case "poll", "event":
		if kind == "poll" {
			cfg.Spin = spin
		}
		cfg.OnMessage = answer
	default:
		return fmt.Errorf("no child %q", kind)
	}
	n, err := newNode(o, kind, cfg)
	if err != nil {
		return err
	}
	if err := n.ep.Listen(context.Background(), o.addr+":0"); err != nil {
		return errors.Join(err, n.close())
	}
	fmt.Println(n.ep.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, n.close())
}

// counter measures what arrives, from the end of the first message on. It belongs to one connection, so to one poller.
type counter struct {
	n           int
	bytes       int64
	first, last time.Time
}

func (c *counter) message(_ *conn.Conn, m conn.Message) {
	now := time.Now()
	if c.n++; c.n == 1 {
		c.first = now
	} else {
		c.bytes += m.Payload.Len()
	}
	c.last = now
	m.Payload.Release()
}

func (c *counter) rate() float64 { return float64(c.bytes) / c.last.Sub(c.first).Seconds() }

// answer sends a head back.
func answer(c *conn.Conn, m conn.Message) {
	if ok, err := c.TrySend(conn.Message{Head: m.Head}); !ok || err != nil {
		fmt.Fprintln(os.Stderr, "perf: cannot answer:", ok, err)
		_ = c.Close() // the other side is told so
	}
}

// dial makes a child of a kind, a node, and the connection between them.
func dial(o *options, kind string, cfg conn.Config) (*child, *node, *conn.Conn, error) {
	peer, err := startChild(o, kind)
	if err != nil {
		return nil, nil, nil, err
	}
	n, err := newNode(o, kind, cfg)
	if err != nil {
		return nil, nil, nil, errors.Join(err, peer.close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := n.ep.Dial(ctx, peer.at)
	if err != nil {
		return nil, nil, nil, errors.Join(err, n.close(), peer.close())
	}
	return peer, n, c, nil
}

// stream sends count payloads and returns bytes per second as the receiver saw them.
func stream(o *options, kind string, size, count int) (rate float64, err error) {
	peer, n, c, err := dial(o, kind, conn.Config{Credits: o.credits})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, n.close(), peer.close()) }()
	defer func() {
		if st := c.Stats(); err == nil && kind == fetched && st.RendezvousSent != uint64(count) {
			err = fmt.Errorf("the peer has fetched %d of %d messages", st.RendezvousSent, count)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	l, err := n.payload().GetList(ctx, int64(size), buffer.Anonymous)
	if err != nil {
		return 0, err
	}
	defer l.Release() // one for all messages, as perftest has one
	err = profiled(o, kind+"-client", func() error {
		for range count {
			if err := c.Send(ctx, conn.Message{Payload: l.Share()}); err != nil {
				l.Release()
				return err
			}
		}
		return c.Shutdown(ctx)
	})
	if err != nil {
		return 0, err
	}
	line, err := peer.line()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(line, 64)
}

// ping returns half of the median round trip.
func ping(o *options, poll bool, count int) (_ float64, err error) {
	kind, cfg := "event", conn.Config{}
	if poll {
		kind, cfg.Spin = "poll", spin
	}
	times := make([]time.Duration, 0, count)
	warm := count / 10
	done := make(chan struct{})
	var sent time.Time
	cfg.OnMessage = func(c *conn.Conn, m conn.Message) { // on one poller
		now := time.Now()
		if warm--; warm < 0 {
			times = append(times, now.Sub(sent))
		}
		if len(times) == count {
			close(done)
			return
		}
		sent = now
		answer(c, m)
	}
	gone := make(chan struct{})
	cfg.OnFault = func(*conn.Conn, error) { close(gone) }
	peer, n, c, err := dial(o, kind, cfg)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, n.close(), peer.close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err = profiled(o, kind+"-client", func() error {
		sent = time.Now()
		if err := c.Send(ctx, conn.Message{Head: make([]byte, pingSize)}); err != nil {
			return err
		}
		select {
		case <-done:
			return nil
		case <-gone:
			return c.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err != nil {
		return 0, err
	}
	slices.Sort(times)
	return times[count/2].Seconds() / 2, nil
}

// profiled writes a CPU profile of f, if wanted.
func profiled(o *options, name string, f func() error) error {
	if o.profile == "" {
		return f()
	}
	out, err := os.Create(filepath.Join(o.profile, name+".pprof"))
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(out); err != nil {
		return errors.Join(err, out.Close())
	}
	err = f()
	pprof.StopCPUProfile()
	return errors.Join(err, out.Close())
}
