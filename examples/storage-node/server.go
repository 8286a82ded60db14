package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/node"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// serverConfig says what a server needs.
type serverConfig struct {
	dir    string
	listen string
	device string
	arena  int64
	pin    bool
	log    *slog.Logger
	level  *slog.LevelVar // of log
	auth   []messenger.Auth
	modes  []messenger.Mode
	open   func() (*verbs.Device, error) // the device, instead of what the choice says; for tests
}

// server is a node with all that it stands on.
type server struct {
	choice fabric.Choice
	store  *store.Store
	fabric *fabric.Fabric
	node   *node.Node
}

// startServer opens the store and the fabric and listens. On an error nothing is left open.
func startServer(ctx context.Context, cfg serverConfig) (s *server, err error) {
	choice := fabric.Choose(cfg.device, cfg.listen, true)
	addrs, err := usable("--listen", cfg.listen, choice)
	if err == nil && cfg.dir == "" {
		err = usagef("--data is empty: name the directory for the objects")
	}
	if err == nil {
		err = checkArena(cfg.arena)
	}
	if err != nil {
		return nil, err
	}
	s = &server{choice: choice}
	defer func() {
		if err != nil {
			// It has not served: the steps of its end would only hide the error.
			cfg.level.Set(max(cfg.level.Level(), slog.LevelWarn))
			err = errors.Join(err, s.shutdown(ctx, 0, func(string) {}))
			s = nil
		}
	}()
	if s.store, err = store.Open(store.Config{Dir: cfg.dir, Logger: cfg.log}); err != nil {
		return s, err
	}
	s.fabric, err = fabric.Open(fabric.Config{
		Name:   messenger.EntityName{Type: messenger.OSD, Num: 0},
		Choice: choice,
		Arena:  cfg.arena,
		Pin:    cfg.pin,
		Logger: cfg.log,
		Auth:   cfg.auth,
		Modes:  cfg.modes,
		Device: cfg.open,
	})
	if err != nil {
		return s, err
	}
	s.node = node.New(node.Config{
		Store:      s.store,
		Arena:      s.fabric.Arena,
		QueuePairs: s.fabric.QueuePairs,
		Device:     s.device,
		Logger:     cfg.log,
	})
	s.fabric.Messenger.AddDispatcher(s.node)
	s.fabric.Messenger.SetPolicy(messenger.Client, messenger.StatelessServer())
	if err := s.fabric.Messenger.Bind(ctx, addrs); err != nil {
		return s, err
	}
	return s, nil
}

// device is the name of the device, and whether it is lost.
func (s *server) device() string {
	select {
	case <-s.fabric.Lost():
		return s.choice.Device + " (lost)"
	default:
		return s.choice.Device
	}
}

// addrs is where the server listens.
func (s *server) addrs() messenger.AddrVec { return s.fabric.Messenger.Addrs() }

// shutdown ends the server in order and calls step before each step. Transfers under way may take grace to end by
// themselves, and all that follows serveShutdown; that ctx has ended, as it does for whoever shuts down, cuts nothing short.
// What could not be released is named in the error.
func (s *server) shutdown(ctx context.Context, grace time.Duration, step func(string)) error {
	var errs []error
	ctx = context.WithoutCancel(ctx)
	drain := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return s.node.Drain(ctx)
	}
	left := false
	if s.node != nil {
		step("node: refuse new transfers, let those under way end")
		left = drain(grace) != nil
	}
	ctx, cancel := context.WithTimeout(ctx, serveShutdown)
	defer cancel()
	if left {
		step(fmt.Sprintf("node: end the transfers that are left: %d", s.node.Stop()))
		_ = drain(time.Second) // their clients are told; one that does not listen is not waited for
	}
	if s.fabric != nil {
		errs = append(errs, s.fabric.CloseMessenger(ctx, step))
	}
	if s.node != nil {
		step("node: wait until nothing of it runs")
		errs = append(errs, s.node.Close(ctx))
	}
	if s.fabric != nil {
		errs = append(errs, s.fabric.Close(ctx, step))
	}
	if s.store != nil {
		step("store: close the index")
		errs = append(errs, s.store.Close())
	}
	step("done")
	return errors.Join(errs...)
}

// reportAttrs is a node's report for a log line.
func reportAttrs(r wire.NodeReply) []any {
	return []any{
		"posted", r.Posted, "held", r.Held, "free", r.Free, "total", r.Total,
		"queue_pairs", r.QueuePairs, "connections", r.Connections, "transfers", r.Transfers,
		"objects", r.Objects, "bytes", r.Bytes, "device", r.Device,
	}
}
