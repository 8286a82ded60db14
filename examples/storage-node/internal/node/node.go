package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// Config says what a node works with. Store and Arena are required; they stay the caller's and outlive the node.
type Config struct {
	Store *store.Store
	Arena *buffer.Arena
	// QueuePairs counts those of the device, for the node's own report. nil: none.
	QueuePairs func() int
	// Device is the name of the device, and what there is to say of it, for the same. nil: none.
	Device func() string
	// TransferBytes is how much of the arena transfers may hold; those beyond wait. Default half of it.
	TransferBytes int64
	// MaxTransfers bounds the transfers under way; those beyond are refused. Default 1024.
	MaxTransfers int
	// TransferIdle ends a transfer whose client asks for nothing for so long. Default 1 minute.
	TransferIdle time.Duration
	// Logger gets failures of transfers and of the disk. nil: silent.
	Logger *slog.Logger
}

const (
	windowsPerTransfer  = 4
	transfersPerSession = 64
	defaultTransfers    = 1024
	defaultTransferIdle = time.Minute
)

// Node serves objects. It is a messenger.Dispatcher.
type Node struct {
	messenger.BaseDispatcher
	cfg    Config
	log    *slog.Logger
	store  *store.Store
	arena  *buffer.Arena
	owner  buffer.Owner
	terms  wire.Terms
	start  time.Time
	wg     sync.WaitGroup // goroutines of transfers
	mu     sync.Mutex
	closed bool // no new transfers
	// sessions has one entry per connection.
	sessions  map[*messenger.Connection]*session
	transfers int
	ended     chan struct{} // non-nil while Drain waits: closed when transfers is 0
}

// session is what the node keeps of a connection. Its fields belong to Node.mu.
type session struct {
	transfers map[uint64]*transfer
	last      uint64 // the number of the newest transfer
}

var _ messenger.Dispatcher = (*Node)(nil)

// New makes a node. Add it to a messenger before that is bound.
func New(cfg Config) *Node {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.QueuePairs == nil {
		cfg.QueuePairs = func() int { return 0 }
	}
	if cfg.Device == nil {
		cfg.Device = func() string { return "" }
	}
	if cfg.TransferBytes == 0 {
		cfg.TransferBytes = cfg.Arena.Account().Total / 2
	}
	if cfg.MaxTransfers == 0 {
		cfg.MaxTransfers = defaultTransfers
	}
	if cfg.TransferIdle == 0 {
		cfg.TransferIdle = defaultTransferIdle
	}
	classes := cfg.Arena.Classes()
	window := min(wire.MaxWindow, classes[len(classes)-1]) / store.ChunkSize * store.ChunkSize
	return &Node{
		cfg:      cfg,
		log:      cfg.Logger,
		store:    cfg.Store,
		arena:    cfg.Arena,
		owner:    cfg.Arena.Owner("transfers", cfg.TransferBytes),
		terms:    wire.Terms{Chunk: store.ChunkSize, Window: uint32(window), Windows: windowsPerTransfer},
		start:    time.Now(),
		sessions: map[*messenger.Connection]*session{},
	}
}

// HandleAccept implements messenger.Dispatcher.
func (n *Node) HandleAccept(c *messenger.Connection) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sessions[c] = &session{transfers: map[uint64]*transfer{}}
}

// HandleReset implements messenger.Dispatcher: the client is gone, and its transfers with it.
func (n *Node) HandleReset(c *messenger.Connection) {
	n.mu.Lock()
	s := n.sessions[c]
	delete(n.sessions, c)
	n.mu.Unlock()
	if s == nil {
		return
	}
	// The session is out of the map: nobody adds to its transfers any more.
	for _, t := range n.list(s) {
		what := "transfer ended by its client"
		switch cause := t.cause(); {
		case errors.Is(cause, wire.StatusShuttingDown):
			what = "transfer ended by the node, which is shutting down"
		case errors.Is(cause, wire.StatusTimeout):
			what = "transfer ended by the node: its client asked for nothing more"
		}
		n.log.Info(what, "op", t.op, "key", t.key, "err", c.Err())
		t.end(wire.StatusNoTransfer)
	}
}

// list copies the transfers of s.
func (n *Node) list(s *session) []*transfer {
	n.mu.Lock()
	defer n.mu.Unlock()
	ts := make([]*transfer, 0, len(s.transfers))
	for _, t := range s.transfers {
		ts = append(ts, t)
	}
	return ts
}

// Dispatch implements messenger.Dispatcher. Requests about windows are handed to their transfer; the others are answered
// here, which takes as long as the disk does.
func (n *Node) Dispatch(ctx context.Context, m *messenger.Message) bool {
	switch m.Type {
	case wire.TypePut:
		return n.handle(ctx, m, n.put)
	case wire.TypePutWindow:
		return n.forward(ctx, m, decodePutWindow)
	case wire.TypePutCommit:
		return n.forward(ctx, m, decodePutCommit)
	case wire.TypeGet:
		return n.handle(ctx, m, n.get)
	case wire.TypeGetWindow:
		return n.forward(ctx, m, decodeGetWindow)
	case wire.TypeEnd:
		return n.handle(ctx, m, n.end)
	case wire.TypeStat:
		return n.handle(ctx, m, n.stat)
	case wire.TypeRemove:
		return n.handle(ctx, m, n.remove)
	case wire.TypeList:
		return n.handle(ctx, m, n.listObjects)
	case wire.TypeNode:
		return n.handle(ctx, m, n.report)
	case wire.TypeReply:
		return false
	default:
		return n.handle(ctx, m, func(context.Context, *messenger.Message) (appender, *buffer.List, error) {
			return nil, nil, wire.StatusBadRequest
		})
	}
}

// appender is an answer with a body.
type appender interface{ Append(b []byte) []byte }

// handle answers m with what f returns: a body, data to go with it (taken), or an error.
func (n *Node) handle(ctx context.Context, m *messenger.Message, f func(context.Context, *messenger.Message) (appender, *buffer.List, error)) bool {
	body, data, err := f(ctx, m)
	n.answer(ctx, m, body, data, err)
	m.Release()
	return true
}

// answer replies to m. It takes data. A reply that can not be sent is for a client that is gone or no longer waits.
func (n *Node) answer(ctx context.Context, m *messenger.Message, body appender, data *buffer.List, err error) {
	r := messenger.NewMessage(wire.TypeReply)
	r.Data = data
	switch {
	case err != nil:
		status, words := n.status(err)
		r.Front = wire.AppendReply(r.Front, status, words)
	case body != nil:
		r.Front = body.Append(r.Front)
	default:
		r.Front = wire.AppendReply(r.Front, wire.StatusOK, "")
	}
	if err := m.Reply(ctx, r); err != nil {
		r.Release()
	}
}

// begin registers a transfer of a connection and returns its number.
func (n *Node) begin(c *messenger.Connection, t *transfer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.sessions[c]
	switch {
	case n.closed:
		return wire.StatusShuttingDown
	case s == nil:
		return wire.StatusNoTransfer // the connection has ended
	case n.transfers >= n.cfg.MaxTransfers || len(s.transfers) >= transfersPerSession:
		return wire.StatusBusy
	}
	s.last++
	t.id = s.last
	s.transfers[t.id] = t
	n.transfers++
	n.wg.Add(2)
	return nil
}

// find returns a transfer of a connection.
func (n *Node) find(c *messenger.Connection, id uint64) (*transfer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.sessions[c]; s != nil {
		if t := s.transfers[id]; t != nil {
			return t, nil
		}
	}
	if n.closed {
		return nil, wire.StatusShuttingDown
	}
	return nil, wire.StatusNoTransfer
}

// forget drops a transfer of a connection whose goroutines have ended.
func (n *Node) forget(c *messenger.Connection, t *transfer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.sessions[c]; s != nil {
		delete(s.transfers, t.id)
	}
	n.transfers--
	if n.transfers == 0 && n.ended != nil {
		close(n.ended)
		n.ended = nil
	}
}

// Drain refuses new transfers and waits until those under way have ended, or ctx does.
func (n *Node) Drain(ctx context.Context) error {
	n.mu.Lock()
	n.closed = true
	if n.transfers == 0 {
		n.mu.Unlock()
		return nil
	}
	if n.ended == nil {
		n.ended = make(chan struct{})
	}
	ended := n.ended
	n.mu.Unlock()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop refuses new transfers and ends those under way: their clients are told that the node is shutting down, unless the
// connection has gone. It does not wait; see Close. It returns how many it ended.
func (n *Node) Stop() int {
	n.mu.Lock()
	n.closed = true
	var all []*transfer
	for _, s := range n.sessions {
		for _, t := range s.transfers {
			all = append(all, t)
		}
	}
	n.mu.Unlock()
	for _, t := range all {
		t.end(wire.StatusShuttingDown)
	}
	return len(all)
}

// Close is Stop, and waits until nothing of the node runs any more, or ctx ends. What a transfer waits for from its client
// ends with the connection, so the messenger is shut down before.
func (n *Node) Close(ctx context.Context) error {
	n.Stop()
	done := make(chan struct{})
	go func() { // ends with the transfers
		n.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("transfers still run: %w", ctx.Err())
	}
}
