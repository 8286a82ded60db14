package node

import (
	"context"
	"fmt"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// get handles a GetRequest: the bytes themselves where they are few, or the beginning of a transfer.
func (n *Node) get(ctx context.Context, m *messenger.Message) (appender, *buffer.List, error) {
	var req wire.GetRequest
	if err := req.Decode(m.Front); err != nil {
		return nil, nil, err
	}
	o, err := n.store.Open(req.Key)
	if err != nil {
		return nil, nil, err
	}
	size := o.Info().Size
	length := size - req.Offset
	if req.Length >= 0 {
		length = min(length, req.Length)
	}
	if req.Offset > size || req.Offset == size && size > 0 {
		n.closeObject(o)
		return nil, nil, fmt.Errorf("%w: offset %d of %d bytes", store.ErrRange, req.Offset, size)
	}
	reply := &wire.GetReply{Terms: n.terms, Offset: req.Offset, Length: length, Info: wireInfo(o.Info())}
	if length <= wire.MaxEager {
		defer n.closeObject(o)
		reply.Eager = true
		data, sums, err := n.read(ctx, o, req.Offset, int(length), nil)
		reply.Sums = sums
		return reply, data, err
	}
	t := newTransfer("get", req.Key, m.Conn, wire.TypeGetWindow)
	if err := n.begin(m.Conn, t); err != nil {
		n.closeObject(o)
		return nil, nil, err
	}
	g := &getTransfer{transfer: t, n: n, o: o, from: req.Offset, to: req.Offset + length, read: make(chan *request)}
	go n.first(t, g.read, g.take, func() []*request { return nil })
	go g.push()
	reply.Transfer = t.id
	return reply, nil, nil
}

func (n *Node) closeObject(o *store.Object) {
	if err := o.Close(); err != nil {
		n.log.Warn("closing an object", "err", err)
	}
}

// read returns length bytes of o from off on, checked, in a buffer of the arena, and the checksums of the pieces between
// multiples of the chunk size, in the memory of sums where that is enough.
func (n *Node) read(ctx context.Context, o *store.Object, off int64, length int, sums []uint32) (*buffer.List, []uint32, error) {
	if length == 0 {
		return nil, nil, nil
	}
	// Whole chunks are read, since only they can be checked.
	end := off + int64(length)
	first := off / store.ChunkSize * store.ChunkSize
	last := min((end+store.ChunkSize-1)/store.ChunkSize*store.ChunkSize, o.Info().Size)
	b, err := n.arena.Get(ctx, int(last-first), n.owner)
	if err != nil {
		return nil, nil, err
	}
	sums, err = o.ReadAt([][]byte{b.Bytes()}, first, sums[:0])
	if err != nil {
		b.Release()
		return nil, nil, err
	}
	view := b.Slice(int(off-first), int(end-first))
	// What was cut off at the ends changes the checksums there.
	if head := min(first+store.ChunkSize, last); off > first || end < head {
		sums[0] = store.Checksum(view.Bytes()[:min(head, end)-off])
	}
	if tail := (last - 1) / store.ChunkSize * store.ChunkSize; end < last && tail > first {
		sums[len(sums)-1] = store.Checksum(view.Bytes()[tail-off:])
	}
	return buffer.NewList(view), sums, nil
}

// getTransfer is a GET under way: its first goroutine reads from the disk, its second pushes to the client.
type getTransfer struct {
	*transfer
	n        *Node
	o        *store.Object
	from, to int64
	read     chan *request
}

func decodeGetWindow(m *messenger.Message, r *request) error {
	var req wire.GetWindow
	if err := req.Decode(m.Front); err != nil {
		return err
	}
	r.id, r.offset, r.length, r.grants = req.Transfer, req.Offset, int(req.Length), req.Grants
	return nil
}

// take reads the window of r.
func (g *getTransfer) take(r *request) error {
	err := g.check(r)
	if err == nil {
		r.data, r.sums, err = g.n.read(r.ctx, g.o, r.offset, r.length, r.sums)
	}
	if err != nil {
		g.n.done(r, nil, err)
		return err
	}
	g.n.pass(g.transfer, g.read, r)
	return nil
}

// check refuses windows that do not keep to the terms.
func (g *getTransfer) check(r *request) error {
	const chunk = store.ChunkSize
	end := r.offset + int64(r.length)
	switch {
	case r.offset < g.from || r.offset > g.to || end > g.to:
		return fmt.Errorf("%w: window from %d to %d of %d to %d", store.ErrRange, r.offset, end, g.from, g.to)
	case r.offset%chunk != 0 && r.offset != g.from, end%chunk != 0 && end != g.to,
		(end+chunk-1)/chunk*chunk-r.offset/chunk*chunk > int64(g.n.terms.Window):
		return fmt.Errorf("%w: window from %d to %d", wire.ErrMalformed, r.offset, end)
	}
	return nil
}

// push is the second goroutine: it writes what was read into the client's buffers.
func (g *getTransfer) push() {
	defer g.n.wg.Done()
	defer g.n.forget(g.conn, g.transfer)
	for r := range g.read {
		err := g.cause()
		if err == nil {
			if err = g.conn.Push(r.ctx, r.grants, 0, r.data); err != nil {
				g.end(err)
			}
		}
		g.n.done(r, &wire.GetWindowReply{Sums: r.sums}, err)
	}
	g.n.closeObject(g.o)
}
