package main

import (
	"context"
	"fmt"
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
	source, size := interruptibleReader(p.ctx, p.stdin), int64(-1)
	if c.File != "-" {
		f, err := until(p.ctx, func() (*os.File, error) { return os.Open(c.File) })
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
		source = f
		if st.Mode().IsRegular() {
			size = st.Size()
		} else {
			source = interruptibleReader(p.ctx, f)
		}
	}
	return c.do(p, func(ctx context.Context, cl *client.Client) error {
		bar := newProgress(p.stderr, c.Key)
		defer bar.finish()
		_, err := cl.Put(ctx, c.Key, source, size, func(done int64) { bar.update(done, size) })
		return err
	})
}
