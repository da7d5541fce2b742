package storage

import (
	"context"
	"errors"
	"time"

	"github.com/barque/barque/raftstore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// askStore bounds the question why a watch cache is not filled. Without a leader it is answered
// after two seconds.
const askStore = 3 * time.Second

// GetList implements storage.Interface.
//
// A server that was started without a quorum has empty watch caches, which answer that they are not
// ready yet, with a time after which clients repeat the request by themselves: up to half a minute,
// ten times. Who wants the newest state is told instead that there is no leader, where that is why.
// Whoever can live with an older one, as informers can, has better ways to wait than to begin anew,
// so it is left to the cache.
//
// With a leader the store itself lists what is newest while the cache is filled: the objects are in
// memory here. The library's finalizer of definitions counts on it: it gives up until the next
// resync when its first list is refused just after a definition was served.
//
// What need not be decoded does not come from the cache at all, see listRaw.
func (r *resuming) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	if done, err := r.listRaw(ctx, key, opts, listObj); done {
		return err
	}
	err := r.CacheDelegator.GetList(ctx, key, opts, listObj)
	if opts.ResourceVersion != "" || !apierrors.IsTooManyRequests(err) {
		return err
	}
	short, cancel := context.WithTimeout(ctx, askStore)
	defer cancel()
	switch _, why := r.store.view(short, "list", raftstore.ViewOptions{}); {
	case errors.Is(why, raftstore.ErrLeaderless):
		return why
	case why != nil:
		return err
	}
	return r.store.GetList(ctx, key, opts, listObj)
}
