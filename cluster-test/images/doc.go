// Package images makes the container images that the end-to-end tests pull: busybox, and two tags
// of nginx; and stand-ins for those of Kubernetes' e2e suite (suite.go). They are made of Debian
// packages, which apt downloads and checks; nothing is installed on the machine and no registry is
// asked.
//
// The images are kept in the user's cache directory under a key of the packages' digests, so they
// are made once per set of packages. The same packages give the same layers, byte for byte.
//
// The images are for tests only: they have the files that the tests use, not those of
// their namesakes.
package images
