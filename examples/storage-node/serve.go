package main

import (
	"os"
	"os/signal"
	"strings"
	"time"
)

type serveCmd struct {
	Listen   string   `required:"" placeholder:"ADDR" help:"Where to listen: host:port, or with the transport as iwarp://host:port, rdma://host:port (with --device) or tcp://host:port; several with commas. Port 0 is any."`
	Data     string   `required:"" placeholder:"DIR" help:"Where the objects are; made if it does not exist."`
	Arena    byteSize `default:"256MiB" help:"Registered memory, for all transfers and connections together."`
	Device   string   `help:"${device}"`
	Pin      bool     `help:"Lock the arena into memory, as hardware does."`
	security `embed:""`

	Grace time.Duration `default:"3s" help:"How long transfers may go on at shutdown."`
}

// watch says what happens to the server until the context of p ends.
func (s *server) watch(p *program) {
	account := make(chan os.Signal, 1)
	if len(accountSignals) > 0 {
		signal.Notify(account, accountSignals...)
		defer signal.Stop(account)
	}
	lost := s.fabric.Lost()
	for p.ctx.Err() == nil {
		select {
		case <-p.ctx.Done():
		case <-lost:
			lost = nil
			p.log.Error("device lost: it was removed or has failed, and nobody reaches the node over it any more; "+
				"start the node again once there is a device", "device", s.choice.Device)
		case <-account:
			r, err := s.node.Report()
			if err != nil {
				p.log.Error("report", "err", err)
				continue
			}
			p.log.Info("account", reportAttrs(r)...)
		}
	}
}

// Run serves until the context of p ends.
func (c *serveCmd) Run(p *program) error {
	auth, modes, err := c.methods(p.log)
	if err != nil {
		return err
	}
	s, err := startServer(p.ctx, serverConfig{
		dir: c.Data, listen: c.Listen, device: c.Device, arena: int64(c.Arena), pin: c.Pin, log: p.log, level: p.level,
		auth: auth, modes: modes,
	})
	if err != nil {
		return err
	}
	var addrs []string
	for _, a := range s.addrs() {
		addrs = append(addrs, a.URL)
		say(p.stdout, "listening %s\n", a.URL)
	}
	p.log.Info("serving", "addrs", strings.Join(addrs, ","), "data", c.Data, "arena", c.Arena.String(), "device", s.choice.Device, "device_chosen", s.choice.Why, "unfinished_blobs_removed", s.store.Swept())

	s.watch(p)
	n := 0
	return s.shutdown(p.ctx, c.Grace, func(what string) {
		n++
		p.log.Info("shutdown", "step", n, "what", what)
	})
}
