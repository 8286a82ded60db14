package messenger

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// CanGrant reports whether Grant works on this connection now: it is open, and
// the peer is of this project. Where the transport is RDMA and the device can
// confine a key to a range and a connection, the peer reaches the memory with
// READ and WRITE; elsewhere the same bytes travel in frames.
func (c *Connection) CanGrant() bool {
	t, err := c.bulk()
	return err == nil && t.canGrant()
}

// Grant lets the peer read, or with write write, the bytes of l, until Revoke
// or the end of the transport; until then references to its buffers are held.
// It borrows l and returns one Grant per buffer, in order. A grant that may be
// written must not be read by us before it is revoked. Where the device can not
// confine keys, bytes of conn.Config.Exposed are granted by the key of their
// region, others in frames. Errors: ErrNotSupported when CanGrant is false.
func (c *Connection) Grant(ctx context.Context, l *buffer.List, write bool) ([]Grant, error) {
	if write {
		if err := writable(l); err != nil {
			return nil, err
		}
	}
	t, err := c.bulk()
	if err != nil {
		return nil, err
	}
	return t.grant(ctx, l, write)
}

// GrantOnce is Grant for one transfer: the Pull or Push of the peer that uses a
// grant, in part or in whole, ends it, and used, if not nil, is called with it, on
// a poller; it must not block. What the peer sends after its transfer may come
// before that. Grants that it does not use, or uses without knowing of this, as
// releases before it do, are ended by Revoke. Errors, besides: ErrNotSupported on
// a stream, in secure mode, and where the devices of both ends have no send with
// invalidate or the keys can not be confined.
func (c *Connection) GrantOnce(ctx context.Context, l *buffer.List, write bool, used func(Grant)) ([]Grant, error) {
	if write {
		if err := writable(l); err != nil {
			return nil, err
		}
	}
	t, err := c.bulk()
	if err != nil {
		return nil, err
	}
	r, ok := t.(*rdmaTransport)
	if !ok {
		return nil, fmt.Errorf("%w: grants for one transfer on a stream", ErrNotSupported)
	}
	return r.grantOnce(ctx, l, write, used)
}

// Revoke ends grants: no byte is read or written through them after it
// returned nil. That holds when their transport has ended, too, which a transfer
// under way may outlive for a moment. Grants that are not live are ignored. A peer
// that uses one all the same gets ErrBadGrant, which on RDMA ends the transport, and
// a lossy session with all its calls: revoke what the peer has said that it is done
// with, as by its reply, or has lost its claim to. On an error, ctx's among them,
// some may still be live: call it again.
func (c *Connection) Revoke(ctx context.Context, gs []Grant) error {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil && !slices.ContainsFunc(gs, func(g Grant) bool { return !l.t.has(g) }) {
		return l.t.revoke(ctx, gs)
	}
	for _, t := range c.m.grantors(c) {
		if err := t.revoke(ctx, gs); err != nil {
			return err
		}
	}
	return nil
}

// grantors is the transports that grants of c may be of: the one it has, and those it
// had as long as they have not ended all their grants.
func (m *Messenger) grantors(c *Connection) (ts []transport) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, set := range [...]map[*link]struct{}{m.links, m.ending} {
		for l := range set {
			if l.owner.Load() != c {
				continue
			}
			l.mu.Lock()
			if l.isOpen {
				ts = append(ts, l.t)
			}
			l.mu.Unlock()
		}
	}
	return ts
}

// settle forgets links that have ended and have no grants any more.
func (m *Messenger) settle() {
	m.mu.Lock()
	ending := slices.Collect(maps.Keys(m.ending))
	m.mu.Unlock()
	for _, l := range ending {
		if l.transport().grants() > 0 { // which may have to wait for one that calls us back
			continue
		}
		m.mu.Lock()
		delete(m.ending, l)
		m.mu.Unlock()
	}
}

// Pull fills dst, which it borrows, from what the peer granted: dst.Len() bytes
// from offset off of all src together. It blocks until they are there, or ctx
// ends: then the buffers of dst stay referenced, and may be written, until the
// transfer is over. Errors: ErrInvalid (out of range), ErrStaleGrant, ErrBadGrant
// (on RDMA that ends the transport), ctx's, or why the connection ended.
func (c *Connection) Pull(ctx context.Context, dst *buffer.List, src []Grant, off uint64) error {
	if err := writable(dst); err != nil {
		return err
	}
	t, err := c.bulk()
	if err != nil {
		return err
	}
	return t.read(ctx, dst, src, off)
}

// Push writes src, which it borrows, into what the peer granted for writing,
// from offset off of all dst together. On RDMA it blocks until the transport has
// taken it, else until the peer has placed it: what is sent on this connection
// afterwards arrives after the bytes are placed. When ctx ends before, src stays
// referenced until the transfer is over. Errors as Pull; on RDMA the peer's
// refusal may come after Push has returned, with the end of the connection.
func (c *Connection) Push(ctx context.Context, dst []Grant, off uint64, src *buffer.List) error {
	t, err := c.bulk()
	if err != nil {
		return err
	}
	return t.write(ctx, dst, off, src)
}

func (c *Connection) bulk() (transport, error) {
	if c.loop {
		return nil, ErrNotSupported
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		if c.session.State != session.Closed {
			return nil, fmt.Errorf("%w: not connected now, see Ready", ErrNotSupported)
		}
		return nil, c.closedErr()
	}
	return c.link.t, nil
}

// pieces cuts n bytes from offset off of gs into parts of one grant each, and
// calls f with the grant, the offset in it and the length. Errors: ErrInvalid,
// f's.
func pieces(gs []Grant, off, n uint64, write bool, f func(g Grant, at, n uint64) error) error {
	total := GrantsLen(gs)
	if off > total || n > total-off {
		return fmt.Errorf("%w: %d bytes at %d of grants of %d", ErrInvalid, n, off, total)
	}
	for _, g := range gs {
		if n == 0 {
			return nil
		}
		if off >= g.Len {
			off -= g.Len
			continue
		}
		if g.Write != write {
			return fmt.Errorf("%w: the grant is for the other direction", ErrInvalid)
		}
		k := min(n, g.Len-off)
		if err := f(g, off, k); err != nil {
			return err
		}
		off, n = 0, n-k
	}
	return nil
}
