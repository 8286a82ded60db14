package main

import (
	"context"
	"io"
)

// until calls f, which may be in a system call that nothing ends, reading from a terminal for instance, and returns what it
// returns, or the error of ctx as soon as that ends. f is left to itself then, with whatever it uses.
func until[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	if err := ctx.Err(); err != nil {
		return *new(T), err
	}
	done := make(chan result, 1)
	go func() { // ends with f, at the latest with the program
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return *new(T), ctx.Err()
	}
}

// piece is how much is copied at a time, because a call that is left to itself may use its memory for ever.
const piece = 64 << 10

// interruptibleReader is r, but for an error as soon as ctx ends. r is not to be used after that.
func interruptibleReader(ctx context.Context, r io.Reader) io.Reader {
	buf := make([]byte, piece)
	return readerFunc(func(p []byte) (int, error) {
		b := buf[:min(len(p), len(buf))]
		n, err := until(ctx, func() (int, error) { return r.Read(b) })
		return copy(p, b[:n]), err
	})
}

// interruptibleWriter is w, but for an error as soon as ctx ends. w is not to be used after that.
func interruptibleWriter(ctx context.Context, w io.Writer) io.Writer {
	buf := make([]byte, piece)
	return writerFunc(func(p []byte) (done int, err error) {
		for done < len(p) && err == nil {
			b := buf[:copy(buf, p[done:])]
			var n int
			n, err = until(ctx, func() (int, error) { return w.Write(b) })
			done += n
		}
		return done, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
