package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// Put stores what r has under key. size is how many bytes that will be, or -1 where it is not known; another number is an
// error. When Put returns nil the object is on the node's disk; after an error the node has what it had before, unless the
// error came instead of the answer to the very last step, or is wire.StatusInternal: then it has the one or the other. progress, which may be nil, is called with the number of bytes
// that the node has taken so far.
func (c *Client) Put(ctx context.Context, key string, r io.Reader, size int64, progress func(int64)) (wire.Info, error) {
	if err := checkKey("put", key); err != nil {
		return wire.Info{}, err
	}
	info, err := c.put(ctx, key, r, size, progress)
	return info, c.fail("put", key, err)
}

func (c *Client) put(ctx context.Context, key string, r io.Reader, size int64, progress func(int64)) (wire.Info, error) {
	if size < 0 || size > wire.MaxEager {
		return c.putWindows(ctx, key, r, size, progress)
	}
	// One byte of room behind the end shows whether there is more than announced.
	b, err := c.arena.Get(ctx, int(size)+1, c.owner)
	if err != nil {
		return wire.Info{}, err
	}
	n, err := io.ReadFull(r, b.Bytes())
	if err == nil || int64(n) != size || !isEnd(err) {
		b.Release()
		return wire.Info{}, sourceError(err, int64(n), size)
	}
	req := &wire.PutRequest{Key: key, Size: size, Eager: true, Sums: sums(nil, 0, b.Bytes()[:n], store.ChunkSize)}
	var data *buffer.List
	if n > 0 {
		data = buffer.NewList(b.Slice(0, n))
	} else {
		b.Release()
	}
	var reply wire.PutReply
	back, err := c.call(ctx, wire.TypePut, req, data, &reply)
	if back != nil {
		back.Release()
	}
	if err == nil && progress != nil {
		progress(size)
	}
	return reply.Info, err
}

// isEnd tells whether a reader has come to its end.
func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// sourceError says what is wrong with a source that gave n bytes and err where size were announced.
func sourceError(err error, n, size int64) error {
	switch {
	case err != nil && !isEnd(err):
		return fmt.Errorf("reading the source: %w", err)
	case n > size:
		return fmt.Errorf("the source has more than the %d bytes announced", size)
	default:
		return fmt.Errorf("the source has %d of the %d bytes announced: %w", n, size, io.ErrUnexpectedEOF)
	}
}

// putWindows is a PUT of more than fits into a message.
func (c *Client) putWindows(ctx context.Context, key string, r io.Reader, size int64, progress func(int64)) (info wire.Info, err error) {
	var begun wire.PutReply
	if err := c.simple(ctx, wire.TypePut, &wire.PutRequest{Key: key, Size: size}, &begun); err != nil {
		return wire.Info{}, err
	}
	committed := false
	defer func() {
		if !committed {
			c.endTransfer(ctx, begun.Transfer)
		}
	}()
	windows := min(c.cfg.Windows, int(begun.Terms.Windows))
	ring, err := c.newRing(ctx, windows, int(begun.Terms.Window))
	if err != nil {
		return wire.Info{}, err
	}
	defer ring.release()
	// When one window fails the others need not go on.
	wctx, cancel := context.WithCancel(ctx)
	total, slot, err := c.sendWindows(wctx, ring, &begun, r, size, progress)
	if err != nil {
		cancel()
	}
	if derr := ring.drain(slot); derr != nil && err == nil {
		err = derr
	}
	cancel()
	if err != nil {
		return wire.Info{}, err
	}
	var reply wire.InfoReply
	if err := c.simple(ctx, wire.TypePutCommit, &wire.PutCommit{Transfer: begun.Transfer, Size: total}, &reply); err != nil {
		return wire.Info{}, err
	}
	committed = true
	if progress != nil {
		progress(total)
	}
	return reply.Info, nil
}

// sendWindows reads r into the ring and starts a window for each piece. It returns how many bytes that was, and the slot
// that would be next.
func (c *Client) sendWindows(ctx context.Context, ring *ring, begun *wire.PutReply, r io.Reader, size int64, progress func(int64)) (total int64, slot int, err error) {
	window := int64(begun.Terms.Window) / int64(begun.Terms.Chunk) * int64(begun.Terms.Chunk)
	started := make([]int64, len(ring.bufs)) // where the window of each slot ends
	for {
		if err := ring.wait(slot); err != nil {
			return total, slot, err
		}
		if progress != nil && started[slot] > 0 {
			progress(started[slot])
		}
		p := ring.bufs[slot].Bytes()[:window]
		n, last, err := fill(p, r)
		if err != nil {
			return total, slot, sourceError(err, total, size)
		}
		if size >= 0 && (total+int64(n) > size || last && total+int64(n) < size) {
			return total, slot, sourceError(nil, total+int64(n), size)
		}
		if n > 0 {
			w := &wire.PutWindow{
				Transfer: begun.Transfer, Offset: total, Length: uint32(n),
				Sums: sums(nil, 0, p[:n], int64(begun.Terms.Chunk)),
			}
			b := ring.bufs[slot]
			ring.start(slot, func() error {
				return c.withGrant(ctx, b, n, false, func(gs []messenger.Grant) error {
					w.Grants = gs
					return c.simple(ctx, wire.TypePutWindow, w, nil)
				})
			})
			total += int64(n)
			started[slot] = total
			slot = (slot + 1) % len(ring.bufs)
		}
		if last {
			return total, slot, nil
		}
	}
}

// fill reads as much as p takes; last tells that r has come to its end before that.
func fill(p []byte, r io.Reader) (n int, last bool, err error) {
	n, err = io.ReadFull(r, p)
	if isEnd(err) {
		return n, true, nil
	}
	return n, false, err
}

// endTransfer tells the node that a transfer will not go on. It is a courtesy: the node finds out by itself.
func (c *Client) endTransfer(ctx context.Context, transfer uint64) {
	if c.conn.State() == messenger.StateClosed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	_ = c.simple(ctx, wire.TypeEnd, &wire.EndRequest{Transfer: transfer}, nil)
}

// sums appends the CRC32C of each piece of p, which lies at off in its object, between multiples of chunk.
func sums(dst []uint32, off int64, p []byte, chunk int64) []uint32 {
	for len(p) > 0 {
		n := min(int64(len(p)), chunk-off%chunk)
		dst = append(dst, store.Checksum(p[:n]))
		p = p[n:]
		off += n
	}
	return dst
}
