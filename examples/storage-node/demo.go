package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"text/tabwriter"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/client"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
)

type demoCmd struct {
	Device string   `help:"${device}"`
	Listen string   `default:"127.0.0.1:0" placeholder:"ADDR" help:"Where the node listens."`
	Arena  byteSize `default:"64MiB" help:"Registered memory of the node."`
	Size   byteSize `default:"128MiB" help:"The size of the largest object."`
}

// Run is the demonstration. Whatever is not as it should be makes an error.
func (c *demoCmd) Run(p *program) (err error) {
	dir, err := os.MkdirTemp("", "storage-node-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := startServer(p.ctx, serverConfig{
		dir: dir, listen: c.Listen, device: c.Device, arena: int64(c.Arena), log: p.log, level: p.level,
	})
	if err != nil {
		return err
	}
	addr := s.addrs()[0].URL
	say(p.stdout, "node      %s, data in %s, arena %s\ndevice    %s: %s\n\n", addr, dir, c.Arena, s.choice.Device, s.choice.Why)

	var account wire.NodeReply
	r := remote{Server: addr, Device: s.choice.Device, Timeout: 30 * time.Second, Arena: 64 << 20}
	err = r.do(p, func(ctx context.Context, cl *client.Client) error {
		if err := c.objects(ctx, p.stdout, cl); err != nil {
			return err
		}
		account, err = cl.Report(ctx)
		return err
	})
	if err == nil {
		say(p.stdout, "\narena while the client is connected: posted %d, held %d, free %d, total %d bytes; %d queue pairs\n",
			account.Posted, account.Held, account.Free, account.Total, account.QueuePairs)
	}

	say(p.stdout, "\nshutdown\n")
	arena, begin := s.fabric.Arena, time.Now()
	var last buffer.Account
	err = errors.Join(err, s.shutdown(p.ctx, time.Second, func(what string) {
		last = arena.Account()
		say(p.stdout, "  %8s  %s\n", time.Since(begin).Round(time.Microsecond), what)
	}))
	say(p.stdout, "\naccount   %s\n", fabric.Account(last))
	if err == nil {
		err = balanced(last)
	}
	if err == nil {
		say(p.stdout, "\nall objects came back as they were stored; nothing is held, nothing is posted\n")
	}
	return err
}

// balanced checks the account of an arena that nobody uses.
func balanced(a buffer.Account) error {
	if a.Posted != 0 || a.Held != 0 || a.Free != a.Total {
		return fmt.Errorf("memory is missing: %s", fabric.Account(a))
	}
	return nil
}

// objects stores, fetches and compares objects of several sizes, then tries a range, a replacement and a removal.
func (c *demoCmd) objects(ctx context.Context, out io.Writer, cl *client.Client) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	say(t, "object\tput\tMB/s\tget\tMB/s\t\t\n")
	source := newSource()
	for i, size := range []byteSize{0, 1, 1000, 4 << 10, 64 << 10, 1 << 20, 16 << 20, c.Size} {
		key := fmt.Sprintf("demo/%d", size)
		begin := time.Now()
		if _, err := cl.Put(ctx, key, source.reader(i, int64(size)), int64(size), nil); err != nil {
			return err
		}
		put := time.Since(begin)
		begin = time.Now()
		check := source.checker(i)
		_, n, err := cl.Get(ctx, key, 0, -1, check, nil)
		if err != nil {
			return err
		}
		if n != int64(size) {
			return fmt.Errorf("%s: %d bytes came back", key, n)
		}
		get := time.Since(begin)
		say(t, "%s\t%s\t%s\t%s\t%s\tsame\t\n", size, short(put), rate(size, put), short(get), rate(size, get))
	}
	if err := t.Flush(); err != nil {
		return err
	}

	key := fmt.Sprintf("demo/%d", int64(c.Size))
	from := min(123_456, int64(c.Size)/2)
	length := min(2_000_000, int64(c.Size)-from)
	check := source.checker(7)
	check.off = from
	if _, n, err := cl.Get(ctx, key, from, length, check, nil); err != nil || n != length {
		return fmt.Errorf("range of %s: %d bytes: %w", key, n, err)
	}
	say(out, "\n%d bytes of %s, from byte %d on: same\n", length, key, from)
	if _, err := cl.Put(ctx, key, source.reader(99, 777), 777, nil); err != nil {
		return err
	}
	if _, n, err := cl.Get(ctx, key, 0, -1, source.checker(99), nil); err != nil || n != 777 {
		return fmt.Errorf("replaced %s: %d bytes: %w", key, n, err)
	}
	say(out, "%s replaced by 777 bytes: same\n", key)
	if err := cl.Remove(ctx, key); err != nil {
		return err
	}
	if _, err := cl.Stat(ctx, key); !errors.Is(err, wire.StatusNotFound) {
		return fmt.Errorf("%s was removed, and stat says: %w", key, err)
	}
	say(out, "%s removed: %v\n", key, wire.StatusNotFound)
	return nil
}

func short(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

func rate(size byteSize, d time.Duration) string {
	if size < 1<<20 {
		return ""
	}
	return fmt.Sprintf("%.0f", float64(size)/1e6/d.Seconds())
}

// source makes the demo's data: random bytes, repeated with a period that fits no buffer, so that a byte in the wrong place
// is one of the wrong value. Each object begins somewhere else in it.
type source struct{ block []byte }

func newSource() *source {
	s := &source{block: make([]byte, 1<<20+4099)}
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(s.block) // never fails
	return s
}

// at returns the bytes of object i from off on, as many as lie together.
func (s *source) at(i int, off int64) []byte {
	return s.block[(int64(i)*65_537+off)%int64(len(s.block)):]
}

func (s *source) reader(i int, size int64) io.Reader {
	off := int64(0)
	return readerFunc(func(p []byte) (int, error) {
		if off == size {
			return 0, io.EOF
		}
		n := copy(p, s.at(i, off))
		n = int(min(int64(n), size-off))
		off += int64(n)
		return n, nil
	})
}

// checker is a writer that takes nothing but the bytes of object i.
type checker struct {
	s   *source
	i   int
	off int64
}

func (s *source) checker(i int) *checker { return &checker{s: s, i: i} }

func (c *checker) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		want := c.s.at(c.i, c.off)
		n := min(len(want), len(p)-done)
		if !bytes.Equal(want[:n], p[done:done+n]) {
			return done, fmt.Errorf("the data differs between byte %d and %d", c.off, c.off+int64(n))
		}
		done += n
		c.off += int64(n)
	}
	return done, nil
}
