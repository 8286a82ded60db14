package ibverbs

import "github.com/argonaut-rdma/argonaut/verbs"

// Config says which device to open. The zero value opens the first that has an
// active port.
type Config struct {
	// Device is the device's name, such as "mlx5_0" (`rdma link show` lists
	// them). Default: the one that owns Addr.
	Device string
	// Addr is an IP address of this machine, of the interface that the device
	// serves. Connections are made from it. Default: whatever the routing table
	// says, which fails where that leads to another device.
	Addr string
	// Port is the port of queue pairs, 1 to 255. Default: the one that serves Addr,
	// without Addr the first that is active. Connections through the connection
	// manager use the port of their address whatever is said here.
	Port int
	// GIDIndex is the entry of the port's GID table, up to 255, that queue pairs
	// connected out of band use (QP.Modify). Default, 0: the best one, with Addr's
	// if that is set: RoCE v2 before v1, a routable address before a link-local one.
	GIDIndex int
	// Core is passed to verbs.NewDevice.
	Core verbs.Config
}
