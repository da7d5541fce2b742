package routes

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// resubscribe is the pause after the kernel ended a subscription (it does when its listener is too
// slow).
const resubscribe = time.Second

// Watch calls changed when another program removed one of our routes or changed a link that is no
// pod's, until ctx ends. It may miss changes: reconcile regularly all the same.
func Watch(ctx context.Context, changed func()) {
	for {
		watchOnce(ctx, changed)
		select {
		case <-ctx.Done():
			return
		case <-time.After(resubscribe):
			changed() // something may have been missed
		}
	}
}

// watchOnce returns when a subscription or ctx ends.
func watchOnce(ctx context.Context, changed func()) {
	done := make(chan struct{})
	end := sync.OnceFunc(func() { close(done) })
	defer end()
	failed := make(chan struct{})
	fail := sync.OnceFunc(func() { close(failed) })

	// Both channels are closed by the library once done is closed; draining them lets its
	// goroutines end.
	routes := make(chan netlink.RouteUpdate)
	links := make(chan netlink.LinkUpdate)
	onError := func(error) { fail() }
	if err := netlink.RouteSubscribeWithOptions(routes, done,
		netlink.RouteSubscribeOptions{ErrorCallback: onError}); err != nil {
		return
	}
	if err := netlink.LinkSubscribeWithOptions(links, done,
		netlink.LinkSubscribeOptions{ErrorCallback: onError}); err != nil {
		end()
		for range routes {
		}
		return
	}
	stop, failure := ctx.Done(), (<-chan struct{})(failed)
	for routes != nil || links != nil {
		select {
		case update, ok := <-routes:
			switch {
			case !ok:
				routes = nil
				end()
			case update.Type == unix.RTM_DELROUTE && update.Protocol == Protocol:
				changed()
			}
		case update, ok := <-links:
			switch {
			case !ok:
				links = nil
				end()
			case !strings.HasPrefix(update.Link.Attrs().Name, "veth"): // pods come and go
				changed()
			}
		case <-stop:
			stop = nil
			end()
		case <-failure:
			failure = nil
			end()
		}
	}
}
