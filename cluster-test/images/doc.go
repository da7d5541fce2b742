// Package images makes the container images that the end-to-end tests pull: busybox, and two tags
// of nginx; and stand-ins for those of Kubernetes' e2e suite (suite.go). They are made of Debian
// packages, which apt downloads and checks; nothing is installed on the machine and no registry is
// asked.
//
// What is made is kept in the user's cache directory under a key of the packages' digests, so it
// is made once per set of packages. The same packages give the same layers, byte for byte.
//
// The images are for tests only: they have what the tests use, not what their namesakes have.
package images
