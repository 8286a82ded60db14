package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/client"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// remote is the flags of every command that talks to a node.
type remote struct {
	Server  string        `required:"" placeholder:"ADDR" help:"The node: host:port, or with the transport as iwarp://host:port, rdma://host:port or tcp://host:port."`
	Timeout time.Duration `default:"30s" help:"How long the node may take for each step."`
	Arena   byteSize      `default:"64MiB" help:"Registered memory of the client."`
	Device  string        `help:"${device}"`
	Pin     bool          `help:"Lock the arena into memory, as hardware does."`

	security `embed:""`
}

// tell logs the device. With auto it is news to the user, who is told also where a command logs warnings only.
func (r *remote) tell(p *program, choice fabric.Choice) {
	if r.Device != fabric.DeviceAuto {
		p.log.Debug("device", "device", choice.Device, "why", choice.Why)
		return
	}
	level := p.level.Level()
	p.level.Set(min(level, slog.LevelInfo))
	p.log.Info("device", "device", choice.Device, "device_chosen", choice.Why)
	p.level.Set(level)
}

// do connects to the node, runs f and disconnects.
func (r *remote) do(p *program, f func(context.Context, *client.Client) error) (err error) {
	choice := fabric.Choose(r.Device, r.Server, false)
	r.tell(p, choice)
	addrs, err := usable("--server", r.Server, choice)
	for _, check := range []func() error{
		func() error { return named(addrs) },
		func() error { return checkArena(int64(r.Arena)) },
		func() error { return checkTimeout(r.Timeout) },
	} {
		if err == nil {
			err = check()
		}
	}
	if err != nil {
		return err
	}
	auth, modes, err := r.methods(p.log)
	if err != nil {
		return err
	}
	fab, err := fabric.Open(fabric.Config{
		Name:   messenger.EntityName{Type: messenger.Client, Num: -1},
		Choice: choice,
		Arena:  int64(r.Arena),
		Pin:    r.Pin,
		Logger: p.log,
		Auth:   auth,
		Modes:  modes,
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), clientShutdown)
		defer cancel()
		err = errors.Join(err, fab.Close(ctx, func(what string) { p.log.Debug("shutdown", "what", what) }))
	}()
	c, err := client.Dial(p.ctx, fab.Messenger, fab.Arena, addrs, client.Config{Timeout: r.Timeout})
	if err != nil {
		return r.explain(err)
	}
	return f(p.ctx, c)
}
