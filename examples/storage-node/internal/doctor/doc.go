// Package doctor looks at what a machine has for RDMA and says what stands in the way of using it.
package doctor
