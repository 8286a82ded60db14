package node

import (
	"context"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

func wireInfo(i store.Info) wire.Info {
	return wire.Info{Key: i.Key, Size: i.Size, Modified: i.Modified.UnixNano(), Version: i.Version}
}

func (n *Node) stat(_ context.Context, m *messenger.Message) (appender, *buffer.List, error) {
	var req wire.KeyRequest
	if err := req.Decode(m.Front); err != nil {
		return nil, nil, err
	}
	info, err := n.store.Stat(req.Key)
	return &wire.InfoReply{Info: wireInfo(info)}, nil, err
}

func (n *Node) remove(_ context.Context, m *messenger.Message) (appender, *buffer.List, error) {
	var req wire.KeyRequest
	if err := req.Decode(m.Front); err != nil {
		return nil, nil, err
	}
	return nil, nil, n.store.Remove(req.Key)
}

// listBytes bounds a ListReply, so that it fits into a message whatever the keys are like.
const listBytes = 16 << 10

func (n *Node) listObjects(_ context.Context, m *messenger.Message) (appender, *buffer.List, error) {
	var req wire.ListRequest
	if err := req.Decode(m.Front); err != nil {
		return nil, nil, err
	}
	infos, more, err := n.store.List(req.Prefix, req.After, wire.MaxList)
	if err != nil {
		return nil, nil, err
	}
	reply := &wire.ListReply{More: more}
	size := 0
	for _, i := range infos {
		if size += len(i.Key) + len(i.Version) + 20; size > listBytes && len(reply.Infos) > 0 {
			reply.More = true
			break
		}
		reply.Infos = append(reply.Infos, wireInfo(i))
	}
	return reply, nil, nil
}

// Report is the state of the node: the arena's account, the queue pairs of the device, what is going on, what is stored.
func (n *Node) Report() (wire.NodeReply, error) {
	totals, err := n.store.Totals()
	a := n.arena.Account()
	n.mu.Lock()
	connections, transfers := len(n.sessions), n.transfers
	n.mu.Unlock()
	return wire.NodeReply{
		Posted: a.Posted, Held: a.Held, Free: a.Free, Total: a.Total,
		QueuePairs:  uint32(n.cfg.QueuePairs()),
		Connections: uint32(connections),
		Transfers:   uint32(transfers),
		Objects:     totals.Objects,
		Bytes:       totals.Bytes,
		Uptime:      int64(time.Since(n.start)),
		Device:      n.cfg.Device(),
	}, err
}

func (n *Node) report(_ context.Context, m *messenger.Message) (appender, *buffer.List, error) {
	var req wire.NodeRequest
	if err := req.Decode(m.Front); err != nil {
		return nil, nil, err
	}
	r, err := n.Report()
	return &r, nil, err
}
