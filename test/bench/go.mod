module github.com/argonaut-rdma/argonaut/test/bench

go 1.26.0

require (
	github.com/argonaut-rdma/argonaut v0.0.0
	golang.org/x/sync v0.25.0
)

require (
	github.com/panjf2000/ants/v2 v2.12.1 // indirect
	golang.org/x/sys v0.50.0
)

replace github.com/argonaut-rdma/argonaut => ../..
