// Package subresources holds the parts of resources that are more than an object with a status:
// binding and evicting pods, changing the containers of a running pod, deleting and finalizing
// namespaces, and issuing tokens of service accounts.
//
// Each works on the storage of its parent, which it is given; none has state.
package subresources
