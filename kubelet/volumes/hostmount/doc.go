// Package hostmount mounts file systems for pods on this machine, and removes their mounts. Package
// volumes declares the interface, volumes.Mounts, with the contract of each call.
package hostmount
