package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// Get writes length bytes of the object key, from offset on, to w; length -1 is to the end, and what is behind the end is
// left out. It returns the object's description and how many bytes it wrote; after an error w has got a part, every byte
// of which was checked. An object that is replaced or removed meanwhile is fetched as it was. progress, which may be nil,
// is called with the number of bytes written so far and the number to come in all.
func (c *Client) Get(ctx context.Context, key string, offset, length int64, w io.Writer, progress func(done, total int64)) (wire.Info, int64, error) {
	if err := checkKey("get", key); err != nil {
		return wire.Info{}, 0, err
	}
	info, n, err := c.get(ctx, key, offset, length, w, progress)
	return info, n, c.fail("get", key, err)
}

func (c *Client) get(ctx context.Context, key string, offset, length int64, w io.Writer, progress func(done, total int64)) (wire.Info, int64, error) {
	var begun wire.GetReply
	data, err := c.call(ctx, wire.TypeGet, &wire.GetRequest{Key: key, Offset: offset, Length: length}, nil, &begun)
	if data != nil {
		defer data.Release()
	}
	if err != nil {
		return wire.Info{}, 0, err
	}
	if begun.Offset != offset || length >= 0 && begun.Length > length {
		return wire.Info{}, 0, fmt.Errorf("%w: asked for %d bytes at %d, offered %d at %d", wire.ErrMalformed, length, offset, begun.Length, begun.Offset)
	}
	if !begun.Eager {
		n, err := c.getWindows(ctx, &begun, w, progress)
		return begun.Info, n, err
	}
	var p []byte
	if data != nil {
		if data.Len() > wire.MaxEager {
			return wire.Info{}, 0, fmt.Errorf("%w: %d bytes in one message", wire.ErrMalformed, data.Len())
		}
		if data.Segments() == 1 {
			p = data.At(0).Bytes()
		} else {
			p = make([]byte, data.Len())
			data.CopyTo(p)
		}
	}
	if int64(len(p)) != begun.Length {
		return wire.Info{}, 0, fmt.Errorf("%w: %d bytes announced, %d came", wire.ErrMalformed, begun.Length, len(p))
	}
	if err := check(offset, p, begun.Sums, int64(begun.Terms.Chunk)); err != nil {
		return wire.Info{}, 0, err
	}
	n, err := w.Write(p)
	if err == nil && progress != nil {
		progress(int64(n), int64(n))
	}
	return begun.Info, int64(n), sinkError(err)
}

// check compares p, which lies at off in its object, with the checksums that the node sent.
func check(off int64, p []byte, want []uint32, chunk int64) error {
	if got := sums(nil, off, p, chunk); !slices.Equal(got, want) {
		return fmt.Errorf("%w: bytes %d to %d", ErrChecksum, off, off+int64(len(p)))
	}
	return nil
}

// writeError is our side's: the writer did not take what came. A connection that ends with the windows then under way is
// its consequence.
type writeError struct{ err error }

func (e *writeError) Error() string { return "writing what came: " + e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

func sinkError(err error) error {
	if err != nil {
		return &writeError{err}
	}
	return nil
}

// getWindows is a GET of more than fits into a message.
func (c *Client) getWindows(ctx context.Context, begun *wire.GetReply, w io.Writer, progress func(done, total int64)) (done int64, err error) {
	defer c.endTransfer(ctx, begun.Transfer)
	ring, err := c.newRing(ctx, min(c.cfg.Windows, int(begun.Terms.Windows)), int(begun.Terms.Window))
	if err != nil {
		return 0, err
	}
	defer ring.release()
	wctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		if derr := ring.drain(0); derr != nil && err == nil {
			err = derr
		}
	}()

	type piece struct {
		off  int64
		n    int
		sums []uint32
	}
	pieces := make([]piece, len(ring.bufs))
	chunk, window := int64(begun.Terms.Chunk), int64(begun.Terms.Window)
	next, end := begun.Offset, begun.Offset+begun.Length
	ask := func(slot int) {
		to := min(end, (next/chunk*chunk+window)/chunk*chunk)
		p := &pieces[slot]
		*p = piece{off: next, n: int(to - next)}
		next = to
		ring.start(slot, func() error {
			return c.withGrant(wctx, ring.bufs[slot], p.n, true, func(gs []messenger.Grant) error {
				var reply wire.GetWindowReply
				err := c.simple(wctx, wire.TypeGetWindow, &wire.GetWindow{Transfer: begun.Transfer, Offset: p.off, Length: uint32(p.n), Grants: gs}, &reply)
				p.sums = reply.Sums
				return err
			})
		})
	}
	for slot := 0; slot < len(ring.bufs) && next < end; slot++ {
		ask(slot)
	}
	// The windows come back in any order, and are taken in that of the object.
	for slot := 0; done < begun.Length; slot = (slot + 1) % len(ring.bufs) {
		if err := ring.wait(slot); err != nil {
			return done, err
		}
		p := pieces[slot]
		data := ring.bufs[slot].Bytes()[:p.n]
		if err := check(p.off, data, p.sums, chunk); err != nil {
			return done, err
		}
		n, err := w.Write(data)
		done += int64(n)
		if err == nil && n < len(data) {
			err = errors.New("short write")
		}
		if err != nil {
			return done, sinkError(err)
		}
		if progress != nil {
			progress(done, begun.Length)
		}
		if next < end {
			ask(slot)
		}
	}
	return done, nil
}
