// Package oidc logs users in to a Barque server by Dex, an OpenID Connect provider that others
// wrote, and by certificates of `barque user add`, with kubectl. It is a module of its own, so that
// the product does not depend on Dex, and it knows nothing of Barque but the binary: BARQUE_BIN
// names it. `make test-oidc` builds it and runs the tests.
//
// Dex is the newest version that its Go module offers. It runs in the test's process, with its own
// handlers, storage, connectors and pages; the test fills in its login form as a browser does.
package oidc
