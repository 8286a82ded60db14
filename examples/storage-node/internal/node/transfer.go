package node

import (
	"context"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// request is a message about a window of a transfer, or the commit of a PUT, on its way through the transfer's two
// goroutines. It owns the message; answering it gives the message back.
type request struct {
	m   *messenger.Message
	ctx context.Context // ends with the caller's patience, and with the connection

	id     uint64 // of the transfer
	offset int64  // commit: the size
	length int
	grants []messenger.Grant
	sums   []uint32
	commit bool

	data *buffer.List // between the two goroutines: the window's bytes
}

// transfer is a PUT or a GET under way.
type transfer struct {
	id   uint64
	op   string
	key  string
	conn *messenger.Connection
	kind uint16 // the type of its requests

	requests chan *request // for the first goroutine; room for all that a client may have under way
	stop     chan struct{} // closed when the transfer has ended

	mu  sync.Mutex
	err error // why it ended; nil: it has not. What is sent to requests is sent under mu while it is nil.
}

func newTransfer(op, key string, c *messenger.Connection, kind uint16) *transfer {
	return &transfer{
		op: op, key: key, conn: c, kind: kind,
		requests: make(chan *request, windowsPerTransfer+1), // the windows and the commit
		stop:     make(chan struct{}),
	}
}

// end ends the transfer with the error that its further requests get. Only the first call counts.
func (t *transfer) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
		close(t.stop)
	}
}

// cause is the error that the transfer ended with.
func (t *transfer) cause() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// submit hands r to the first goroutine. On an error r stays the caller's.
func (t *transfer) submit(r *request) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	select {
	case t.requests <- r:
		return nil
	default:
		return wire.StatusBusy // more windows than the terms allow
	}
}

// forward decodes a message about a transfer and hands it over.
func (n *Node) forward(ctx context.Context, m *messenger.Message, decode func(*messenger.Message, *request) error) bool {
	r := &request{m: m, ctx: ctx}
	err := decode(m, r)
	if err == nil {
		var t *transfer
		if t, err = n.find(m.Conn, r.id); err == nil {
			if t.kind != kindOf(m.Type) {
				err = wire.StatusBadRequest
			} else {
				err = t.submit(r)
			}
		}
	}
	if err != nil {
		n.done(r, nil, err)
	}
	return true
}

// kindOf is the type of the windows of the transfers that a message is about.
func kindOf(t uint16) uint16 {
	if t == wire.TypePutCommit {
		return wire.TypePutWindow
	}
	return t
}

// done answers r and gives back what it holds.
func (n *Node) done(r *request, body appender, err error) {
	if r.data != nil {
		r.data.Release()
		r.data = nil
	}
	n.answer(r.ctx, r.m, body, nil, err)
	r.m.Release()
}

// first runs the first half of a transfer: it takes each request from the queue to take, which passes what is ready to
// out. It ends when the transfer has, and answers what is left. leftover has the requests that take has kept.
func (n *Node) first(t *transfer, out chan<- *request, take func(*request) error, leftover func() []*request) {
	defer n.wg.Done()
	defer close(out)
	idle := time.NewTimer(n.cfg.TransferIdle)
	defer idle.Stop()
	for {
		select {
		case r := <-t.requests:
			idle.Reset(n.cfg.TransferIdle)
			if err := take(r); err != nil {
				t.end(err)
			}
			continue
		case <-idle.C:
			t.end(wire.StatusTimeout)
		case <-t.stop:
		}
		// It has ended: nothing is added to the queue any more.
		t.end(wire.StatusNoTransfer)
		cause := t.cause()
		for _, r := range leftover() {
			n.done(r, nil, cause)
		}
		for {
			select {
			case r := <-t.requests:
				n.done(r, nil, cause)
			default:
				return
			}
		}
	}
}

// pass hands r to the second goroutine, or answers it if the transfer has ended.
func (n *Node) pass(t *transfer, out chan<- *request, r *request) {
	select {
	case out <- r:
	case <-t.stop:
		n.done(r, nil, t.cause())
	}
}

// end handles an EndRequest.
func (n *Node) end(_ context.Context, m *messenger.Message) (appender, *buffer.List, error) {
	var req wire.EndRequest
	if err := req.Decode(m.Front); err != nil {
		return nil, nil, err
	}
	t, err := n.find(m.Conn, req.Transfer)
	if err != nil {
		return nil, nil, err
	}
	t.end(wire.StatusNoTransfer)
	return nil, nil, nil
}
