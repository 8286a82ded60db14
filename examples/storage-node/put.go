package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/client"
)

type putCmd struct {
	remote `embed:""`
	Key    string `arg:"" help:"The object's key."`
	File   string `arg:"" help:"The file to store; - is standard input."`
}

// Run stores the file.
func (c *putCmd) Run(p *program) error {
	source, size := p.stdin, int64(-1)
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		if st.IsDir() {
			return fmt.Errorf("%s is a directory", c.File)
		}
		if st.Mode().IsRegular() {
			size = st.Size()
		}
		source = f
	}
	return c.do(p, func(ctx context.Context, cl *client.Client) error {
		bar := newProgress(p.stderr, c.Key)
		defer bar.finish()
		_, err := cl.Put(ctx, c.Key, interruptible(ctx, source), size, func(done int64) { bar.update(done, size) })
		return err
	})
}

// interruptible is r, but for an error once ctx has ended: a pipe that is read after that would hold the program up.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(b)
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
