package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/client"
)

type getCmd struct {
	remote `embed:""`
	Range  byteRange `placeholder:"FIRST-LAST" help:"Only these bytes, as 0-1023."`
	Key    string    `arg:"" help:"The object's key."`
	File   string    `arg:"" help:"The file to write; - is standard output."`
}

// Run fetches the object. A regular file is there whole or not at all.
func (c *getCmd) Run(p *program) error {
	if c.File == "" {
		return usagef("name the file to write, or - for standard output")
	}
	offset, length := int64(0), int64(-1)
	if c.Range.given {
		offset, length = c.Range.offset, c.Range.length
	}
	return c.do(p, func(ctx context.Context, cl *client.Client) (err error) {
		bar := newProgress(p.stderr, c.Key)
		defer bar.finish()
		if c.File == "-" {
			_, _, err := cl.Get(ctx, c.Key, offset, length, interruptibleWriter(ctx, p.stdout), bar.update)
			return err
		}
		// What is no regular file (a device, a pipe) is written to, not replaced.
		file, err := filepath.EvalSymlinks(c.File)
		if err != nil {
			file = c.File // it does not exist yet
		}
		if st, err := os.Stat(file); err == nil && st.IsDir() {
			return fmt.Errorf("%s is a directory: name the file to write", c.File)
		} else if err == nil && !st.Mode().IsRegular() {
			f, err := until(ctx, func() (*os.File, error) { return os.OpenFile(file, os.O_WRONLY, 0) })
			if err != nil {
				return err
			}
			_, _, err = cl.Get(ctx, c.Key, offset, length, interruptibleWriter(ctx, f), bar.update)
			return errors.Join(err, f.Close())
		}
		part := file + ".part-" + rand.Text()[:8]
		f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, os.Remove(part))
			}
		}()
		if _, _, err = cl.Get(ctx, c.Key, offset, length, f, bar.update); err != nil {
			return errors.Join(err, f.Close())
		}
		if err = f.Close(); err != nil {
			return err
		}
		return os.Rename(part, file)
	})
}
