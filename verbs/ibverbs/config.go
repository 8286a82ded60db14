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
	// Core is passed to verbs.NewDevice.
	Core verbs.Config
}
