package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// Config says how a client works. The zero value is the default.
type Config struct {
	// Timeout bounds each step that the node has to do: connecting, a window, a commit. Default 30 s.
	Timeout time.Duration
	// Windows is how many windows a transfer has under way, at most what the node allows. Default 4.
	Windows int
}

const (
	defaultTimeout = 30 * time.Second
	defaultWindows = 4
	revokeTimeout  = 5 * time.Second
)

// Client is a connection to one node. Its methods are safe for concurrent use.
type Client struct {
	cfg   Config
	node  string // its address, for messages
	arena *buffer.Arena
	owner buffer.Owner
	conn  *messenger.Connection
	gone  context.Context // ends when the connection has
}

// Error says what was asked of which node, and why it failed.
type Error struct {
	Op   string // "connect", "put", "get", "stat", "remove", "list"
	Key  string // empty where it is about no object
	Node string
	Err  error
}

func (e *Error) Error() string {
	var status *StatusError
	if errors.As(e.Err, &status) && status.Words != "" {
		return status.Words + " (node " + e.Node + ")"
	}
	s := e.Op
	if errors.As(e.Err, new(*writeError)) {
		return fmt.Sprintf("%s %q: %v", e.Op, e.Key, e.Err) // it is not the node's
	}
	if e.Key != "" {
		s += fmt.Sprintf(" %q", e.Key)
	}
	return s + ": " + e.Err.Error() + " (node " + e.Node + ")"
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// StatusError is the node's answer to a request that failed. It matches its Status.
type StatusError struct {
	Status wire.Status
	Words  string // the node's own; may be empty
}

func (e *StatusError) Error() string {
	if e.Words != "" {
		return e.Words
	}
	return e.Status.Error()
}

// Unwrap returns the status.
func (e *StatusError) Unwrap() error { return e.Status }

// ErrChecksum: data from the node does not have the checksum that it sent with it.
var ErrChecksum = errors.New("data was damaged on its way from the node")

// ErrGone: the connection to the node has ended before its answer.
var ErrGone = errors.New("lost the connection to the node")

var errNobody = errors.New("nobody listens there: is the node running, and is it this address?")

// watcher notices connections that come to nothing, or to an end.
type watcher struct {
	messenger.BaseDispatcher
	end     func(error)
	refused func()
}

func (w *watcher) HandleRefused(*messenger.Connection) { w.refused() }

func (w *watcher) HandleReset(*messenger.Connection) { w.end(ErrGone) }

// Dial connects to a node. It blocks until the connection is ready, at most for cfg.Timeout. The messenger is the
// client's own: nothing else may be connected to through it. It and the arena stay the caller's.
func Dial(ctx context.Context, m *messenger.Messenger, a *buffer.Arena, addrs messenger.AddrVec, cfg Config) (*Client, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Windows == 0 {
		cfg.Windows = defaultWindows
	}
	c := &Client{cfg: cfg, arena: a, owner: a.Owner("transfers", 0)}
	if len(addrs) > 0 {
		c.node = addrs[0].URL
	}
	if err := resolvable(ctx, addrs); err != nil {
		return nil, &Error{Op: "connect", Node: c.node, Err: err}
	}
	gone, end := context.WithCancelCause(context.Background())
	c.gone = gone
	refused, refuse := context.WithCancel(context.Background())
	defer refuse()
	m.AddDispatcher(&watcher{end: end, refused: refuse})
	m.SetPolicy(messenger.OSD, messenger.LossyClient())
	conn, err := m.ConnectTo(messenger.OSD, addrs)
	if err != nil {
		return nil, &Error{Op: "connect", Node: c.node, Err: err}
	}
	c.conn = conn
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	ctx, cause := context.WithCancelCause(ctx)
	defer cause(nil)
	defer context.AfterFunc(gone, func() { cause(context.Cause(gone)) })()
	if err := ready(ctx, refused, conn); err != nil {
		last := conn.Err()
		conn.MarkDown()
		switch {
		case errors.Is(err, ErrForeign), errors.Is(err, errNobody):
		case errors.Is(last, messenger.ErrAuth):
			err = last
		case gone.Err() != nil:
			err = context.Cause(gone)
			if last != nil && !errors.Is(last, messenger.ErrClosed) {
				err = fmt.Errorf("%w: %w", err, last)
			}
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			err = fmt.Errorf("no answer within %v: %w", cfg.Timeout, err)
		}
		return nil, &Error{Op: "connect", Node: c.node, Err: err}
	}
	return c, nil
}

// ErrForeign: what listens at the address has ended the connection before it was one of the address's transport.
var ErrForeign = errors.New("what listens there ends connections of this kind: does the node have another transport at this port?")

// endsForeign tells whether an attempt to connect has ended as it does where another transport listens. The messenger has
// no error value for it, only words.
func endsForeign(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "the connection ended before it was one of RDMA") ||
		strings.Contains(err.Error(), "the connection ended before the peer's banner"))
}

const (
	// foreignAttempts is after how many attempts that ended so there are no more. A node that is being restarted, or has
	// too many peers in the handshake, ends one like that, too.
	foreignAttempts = 3
	// lookInterval is how often the attempts are looked at, refusedInterval how often once one was refused.
	lookInterval    = 100 * time.Millisecond
	refusedInterval = 5 * time.Millisecond
)

// ready is conn.Ready, but ends as well when nobody listens at the address, or another transport seems to: refused ends
// with the first attempt that was refused.
func ready(ctx, refused context.Context, conn *messenger.Connection) error {
	var seen *messenger.FaultError
	for foreign, interval := 0, lookInterval; ; {
		look, cancel := context.WithTimeout(ctx, interval)
		stop := func() bool { return true }
		if refused.Err() == nil {
			stop = context.AfterFunc(refused, cancel)
		}
		err := conn.Ready(look)
		over := err == nil || ctx.Err() != nil || look.Err() == nil
		stop()
		cancel()
		if over {
			return err
		}
		last := conn.Err()
		if refused.Err() != nil {
			if last != nil {
				return fmt.Errorf("%w: %w", reason(last), last)
			}
			interval = refusedInterval // the refusal is told before it is noted
			continue
		}
		var fault *messenger.FaultError
		if !errors.As(last, &fault) || fault == seen {
			continue
		}
		seen = fault
		foreign++
		if !endsForeign(last) {
			foreign = 0
		} else if foreign == foreignAttempts {
			return fmt.Errorf("%w: %w", ErrForeign, last)
		}
	}
}

// reason is what it means that a connection was refused.
func reason(last error) error {
	if endsForeign(last) {
		return ErrForeign
	}
	return errNobody
}

// resolvable fails when no address names a host that there is: a messenger would go on trying, since names may come.
func resolvable(ctx context.Context, addrs messenger.AddrVec) error {
	var errs []error
	for _, a := range addrs {
		host, _, err := net.SplitHostPort(a.HostPort())
		if err == nil && host != "" {
			_, err = net.DefaultResolver.LookupHost(ctx, host)
		}
		var dns *net.DNSError
		if err == nil || !errors.As(err, &dns) || !dns.IsNotFound {
			return nil // the messenger says what is wrong
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Close ends the connection.
func (c *Client) Close() { c.conn.MarkDown() }

func (c *Client) fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	var fault *messenger.FaultError
	switch {
	case errors.As(err, new(*writeError)):
	case errors.Is(err, messenger.ErrReset), errors.As(err, &fault), c.gone.Err() != nil:
		err = fmt.Errorf("%w: %w", ErrGone, err)
	}
	return &Error{Op: op, Key: key, Node: c.node, Err: err}
}

// checkKey refuses keys that no node accepts: they might not even fit into a request.
func checkKey(op, key string) error {
	if err := store.CheckKey(key); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

type appender interface{ Append(b []byte) []byte }
type decoder interface{ Decode(p []byte) error }

// call sends a request, with data (taken, whatever happens) where there is some, and decodes the answer into body, which
// is nil where there is none to come. It returns the data of the answer, which is the caller's.
func (c *Client) call(ctx context.Context, t uint16, req appender, data *buffer.List, body decoder) (*buffer.List, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	m := messenger.NewMessage(t)
	m.Front = req.Append(m.Front)
	m.Data = data
	r, err := c.conn.Call(ctx, m)
	if err != nil {
		m.Release()
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v: %w", c.cfg.Timeout, err)
		}
		return nil, err
	}
	defer r.Release()
	status, words, err := wire.DecodeReply(r.Front)
	if err != nil {
		return nil, err
	}
	if status != wire.StatusOK {
		return nil, &StatusError{Status: status, Words: words}
	}
	if body != nil {
		if err := body.Decode(r.Front); err != nil {
			return nil, err
		}
	}
	data, r.Data = r.Data, nil
	return data, nil
}

// simple is call without data.
func (c *Client) simple(ctx context.Context, t uint16, req appender, body decoder) error {
	data, err := c.call(ctx, t, req, nil, body)
	if data != nil {
		data.Release()
	}
	return err
}

// Stat describes an object.
func (c *Client) Stat(ctx context.Context, key string) (wire.Info, error) {
	if err := checkKey("stat", key); err != nil {
		return wire.Info{}, err
	}
	var r wire.InfoReply
	err := c.simple(ctx, wire.TypeStat, &wire.KeyRequest{Key: key}, &r)
	return r.Info, c.fail("stat", key, err)
}

// Remove deletes an object.
func (c *Client) Remove(ctx context.Context, key string) error {
	if err := checkKey("remove", key); err != nil {
		return err
	}
	return c.fail("remove", key, c.simple(ctx, wire.TypeRemove, &wire.KeyRequest{Key: key}, nil))
}

// List calls f for each object whose key starts with prefix, in the order of the keys, until f returns an error.
func (c *Client) List(ctx context.Context, prefix string, f func(wire.Info) error) error {
	if len(prefix) > store.MaxKeyLen {
		return checkKey("list", prefix)
	}
	after := ""
	for {
		var r wire.ListReply
		if err := c.simple(ctx, wire.TypeList, &wire.ListRequest{Prefix: prefix, After: after}, &r); err != nil {
			return c.fail("list", "", err)
		}
		for _, i := range r.Infos {
			if err := f(i); err != nil {
				return err
			}
			after = i.Key
		}
		if !r.More || len(r.Infos) == 0 {
			return nil
		}
	}
}

// Report asks the node for its state.
func (c *Client) Report(ctx context.Context) (wire.NodeReply, error) {
	var r wire.NodeReply
	err := c.simple(ctx, wire.TypeNode, &wire.NodeRequest{}, &r)
	return r, c.fail("stat", "", err)
}

// withGrant lets the node read, or write, the first n bytes of b while f runs. When it has returned nil the node can not
// reach them any more.
func (c *Client) withGrant(ctx context.Context, b buffer.RDMABuffer, n int, write bool, f func([]messenger.Grant) error) error {
	list := buffer.NewList(b.Retain().Slice(0, n))
	defer list.Release()
	grants, err := c.conn.Grant(ctx, list, write)
	if err != nil {
		return err
	}
	err = f(grants)
	// Also when ctx has ended: while a grant lives the buffer is not ours.
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	if rerr := c.conn.Revoke(rctx, grants); rerr != nil && err == nil {
		err = rerr
	}
	return err
}

// ring is the buffers of a transfer, used in turn, one window in each.
type ring struct {
	bufs    []buffer.RDMABuffer
	results []chan error // of the window in that buffer: one value per window
	busy    []bool
}

// newRing takes n buffers of window bytes.
func (c *Client) newRing(ctx context.Context, n, window int) (*ring, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	r := &ring{}
	for range n {
		b, err := c.arena.Get(ctx, window, c.owner)
		if err != nil {
			r.release()
			return nil, fmt.Errorf("memory for %d windows: %w", n, err)
		}
		r.bufs = append(r.bufs, b)
		r.results = append(r.results, make(chan error, 1))
		r.busy = append(r.busy, false)
	}
	return r, nil
}

// start runs f for slot i on a goroutine of its own; wait returns what it returned.
func (r *ring) start(i int, f func() error) {
	r.busy[i] = true
	go func() { r.results[i] <- f() }()
}

// wait waits for the window of slot i, if there is one.
func (r *ring) wait(i int) error {
	if !r.busy[i] {
		return nil
	}
	r.busy[i] = false
	return <-r.results[i]
}

// drain waits for all windows that are under way, from slot i on, and returns the first error.
func (r *ring) drain(i int) error {
	var first error
	for k := range r.bufs {
		if err := r.wait((i + k) % len(r.bufs)); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (r *ring) release() {
	for _, b := range r.bufs {
		b.Release()
	}
}
