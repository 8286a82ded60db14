package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/client"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
)

type lsCmd struct {
	remote `embed:""`
	Prefix string `arg:"" optional:"" help:"Only keys that start with this."`
}

// Run lists objects: size in bytes, time, key.
func (c *lsCmd) Run(p *program) error {
	return c.do(p, func(ctx context.Context, cl *client.Client) error {
		out := interruptibleWriter(ctx, p.stdout)
		return cl.List(ctx, c.Prefix, func(i wire.Info) error {
			size := fmt.Sprint(i.Size)
			if i.Size < 0 {
				size = "damaged"
			}
			_, err := fmt.Fprintf(out, "%14s  %s  %s\n", size, time.Unix(0, i.Modified).Format(time.RFC3339), i.Key)
			return err
		})
	})
}

type statCmd struct {
	remote `embed:""`
	Key    string `arg:"" optional:"" help:"The object's key; without one the node is described."`
}

// Run describes an object or the node.
func (c *statCmd) Run(p *program) error {
	return c.do(p, func(ctx context.Context, cl *client.Client) error {
		if c.Key == "" {
			r, err := cl.Report(ctx)
			if err != nil {
				return err
			}
			return printReport(p.stdout, r)
		}
		i, err := cl.Stat(ctx, c.Key)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "key       %s\nsize      %d\nmodified  %s\nversion   %s\n",
			i.Key, i.Size, time.Unix(0, i.Modified).Format(time.RFC3339Nano), i.Version)
		return err
	})
}

func printReport(w io.Writer, r wire.NodeReply) error {
	_, err := fmt.Fprintf(w, "device       %s\nuptime       %s\narena        %s\nqueue pairs  %d\nconnections  %d\ntransfers    %d\nobjects      %d\nstored       %d bytes\n",
		r.Device, time.Duration(r.Uptime).Round(time.Millisecond),
		fabric.Account(buffer.Account{Posted: r.Posted, Held: r.Held, Free: r.Free, Total: r.Total}),
		r.QueuePairs, r.Connections, r.Transfers, r.Objects, r.Bytes)
	return err
}

type rmCmd struct {
	remote `embed:""`
	Key    string `arg:"" help:"The object's key."`
}

// Run removes the object.
func (c *rmCmd) Run(p *program) error {
	return c.do(p, func(ctx context.Context, cl *client.Client) error { return cl.Remove(ctx, c.Key) })
}
