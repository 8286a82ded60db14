package node

import (
	"context"
	"fmt"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// put handles a PutRequest: a small object that came with it, or the beginning of a transfer.
func (n *Node) put(_ context.Context, m *messenger.Message) (appender, *buffer.List, error) {
	var req wire.PutRequest
	if err := req.Decode(m.Front); err != nil {
		return nil, nil, err
	}
	w, err := n.store.Create(req.Key, req.Size)
	if err != nil {
		return nil, nil, err
	}
	if req.Eager {
		info, err := n.putEager(w, &req, m.Data)
		if err != nil {
			return nil, nil, err
		}
		return &wire.PutReply{Terms: n.terms, Info: wireInfo(info)}, nil, nil
	}
	t := newTransfer("put", req.Key, m.Conn, wire.TypePutWindow)
	if err := n.begin(m.Conn, t); err != nil {
		n.abort(w)
		return nil, nil, err
	}
	p := &putTransfer{transfer: t, n: n, w: w, pulled: make(chan *request), waiting: map[int64]*request{}}
	go n.first(t, p.pulled, p.take, p.leftover)
	go p.write()
	return &wire.PutReply{Transfer: t.id, Terms: n.terms}, nil, nil
}

func (n *Node) putEager(w *store.Writer, req *wire.PutRequest, data *buffer.List) (store.Info, error) {
	var segs [][]byte
	if data != nil {
		if data.Len() > wire.MaxEager {
			n.abort(w)
			return store.Info{}, fmt.Errorf("%w: %d bytes are too many for one message", wire.ErrMalformed, data.Len())
		}
		segs = data.IOVec(nil)
	}
	if err := w.Append(segs, given(req.Sums)); err != nil {
		n.abort(w)
		return store.Info{}, err
	}
	return w.Commit()
}

// given is the checksums of a request, of which no data may go without: nil would tell the store that there are none.
func given(sums []uint32) []uint32 {
	if sums == nil {
		return []uint32{}
	}
	return sums
}

// abort removes what a writer has written; where that fails the next start does it.
func (n *Node) abort(w *store.Writer) {
	if err := w.Abort(); err != nil {
		n.log.Warn("unfinished object stays on the disk until the next start", "err", err)
	}
}

// putTransfer is a PUT under way: its first goroutine pulls windows in their order, its second writes them.
type putTransfer struct {
	*transfer
	n      *Node
	w      *store.Writer
	pulled chan *request

	// Of the first goroutine.
	next    int64 // the offset of the window to pull now
	waiting map[int64]*request
}

func decodePutWindow(m *messenger.Message, r *request) error {
	var req wire.PutWindow
	if err := req.Decode(m.Front); err != nil {
		return err
	}
	r.id, r.offset, r.length, r.grants, r.sums = req.Transfer, req.Offset, int(req.Length), req.Grants, given(req.Sums)
	return nil
}

func decodePutCommit(m *messenger.Message, r *request) error {
	var req wire.PutCommit
	if err := req.Decode(m.Front); err != nil {
		return err
	}
	r.id, r.offset, r.commit = req.Transfer, req.Size, true
	return nil
}

// take pulls the window of r, and those after it that have come before it. Windows are pulled in the order of their
// offsets, so a transfer holds no memory for one that can not be written yet.
func (p *putTransfer) take(r *request) error {
	if r.commit {
		if r.offset != p.next || len(p.waiting) > 0 {
			err := fmt.Errorf("%w: %d bytes came, %d committed", store.ErrSize, p.next, r.offset)
			p.n.done(r, nil, err)
			return err
		}
		p.n.pass(p.transfer, p.pulled, r)
		return nil
	}
	if r.offset < p.next || p.waiting[r.offset] != nil || r.length > int(p.n.terms.Window) {
		p.n.done(r, nil, wire.StatusBadRequest)
		return wire.StatusBadRequest
	}
	if len(p.waiting) >= windowsPerTransfer {
		p.n.done(r, nil, wire.StatusBusy) // as where the queue is full
		return nil
	}
	p.waiting[r.offset] = r
	for {
		w := p.waiting[p.next]
		if w == nil {
			break
		}
		delete(p.waiting, p.next)
		if err := p.pull(w); err != nil {
			p.n.done(w, nil, err)
			return err
		}
		p.next += int64(w.length)
		p.n.pass(p.transfer, p.pulled, w)
	}
	return nil
}

// pull fetches the window of r from its client.
func (p *putTransfer) pull(r *request) error {
	b, err := p.n.arena.Get(r.ctx, r.length, p.n.owner)
	if err != nil {
		return err
	}
	r.data = buffer.NewList(b)
	return p.conn.Pull(r.ctx, r.data, r.grants, 0)
}

func (p *putTransfer) leftover() []*request {
	var rs []*request
	for _, r := range p.waiting {
		rs = append(rs, r)
	}
	return rs
}

// write is the second goroutine: it writes what was pulled and commits at the end.
func (p *putTransfer) write() {
	defer p.n.wg.Done()
	defer p.n.forget(p.conn, p.transfer)
	var segs [][]byte
	for r := range p.pulled {
		if err := p.cause(); err != nil {
			p.n.done(r, nil, err)
			continue
		}
		if r.commit {
			info, err := p.w.Commit()
			p.n.done(r, &wire.InfoReply{Info: wireInfo(info)}, err)
			p.end(wire.StatusNoTransfer)
			continue
		}
		segs = r.data.IOVec(segs[:0])
		err := p.w.Append(segs, r.sums)
		if err != nil {
			p.end(err)
		}
		p.n.done(r, nil, err)
	}
	p.n.abort(p.w) // nothing, after a commit
}
