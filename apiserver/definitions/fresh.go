// Package definitions adds to the library's server of CustomResourceDefinitions.
//
//	Fresh             reads the store for a definition that this server's informer lacks
//	Ensure            makes the cluster's own definitions
//	SelectableFields  refuses a definition over which the library panics
package definitions

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
)

const (
	// patience is how long a request waits until this server's informer has its
	// definition.
	patience = 5 * time.Second
	poll     = 2 * time.Millisecond
)

// Fresh stands behind the server of custom resources. That one uses its informer, which
// is a moment behind the store, and would answer 404 for a resource that another server serves
// already. This one reads the store, and sends the request back when there is a definition.
type Fresh struct {
	// Get reads a definition from the store.
	Get func(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error)
	// Known has the definitions of this server's informer.
	Known crdlisters.CustomResourceDefinitionLister
	// Again is the server of custom resources.
	Again http.Handler
	// Next answers 404.
	Next   http.Handler
	Codecs runtime.NegotiatedSerializer
}

type askedAgain struct{}

// ServeHTTP implements http.Handler.
func (f *Fresh) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || !info.IsResourceRequest || info.APIGroup == "" || ctx.Value(askedAgain{}) != nil {
		f.Next.ServeHTTP(w, r)
		return
	}
	name := info.Resource + "." + info.APIGroup
	if len(content.IsPathSegmentName(name)) > 0 { // no object has such a name, and no client sends it
		f.Next.ServeHTTP(w, r)
		return
	}
	crd, err := f.Get(ctx, name)
	// A definition that this server's informer has by now may have been too late for the server of
	// custom resources a moment ago: the request is sent back in any case.
	if apierrors.IsNotFound(err) || err == nil && !serves(crd, info.APIVersion) {
		f.Next.ServeHTTP(w, r)
		return
	}
	if err == nil {
		err = f.await(ctx, crd)
	}
	if err != nil {
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		responsewriters.ErrorNegotiated(err, f.Codecs, gv, w, r)
		return
	}
	f.Again.ServeHTTP(w, r.WithContext(context.WithValue(ctx, askedAgain{}, true)))
}

// serves reports whether a definition makes the server serve a version.
func serves(crd *apiextensionsv1.CustomResourceDefinition, version string) bool {
	return apihelpers.HasServedCRDVersion(crd, version) &&
		(apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) ||
			apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted))
}

// knows reports whether this server's informer has a definition as it is.
func (f *Fresh) knows(crd *apiextensionsv1.CustomResourceDefinition) bool {
	known, err := f.Known.Get(crd.Name)
	if err != nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(known.ResourceVersion, crd.ResourceVersion)
	return err == nil && order >= 0
}

func (f *Fresh) await(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for !f.knows(crd) {
		select {
		case <-ctx.Done():
			return apierrors.NewTimeoutError(
				"this server has not heard of CustomResourceDefinition "+crd.Name+" yet; try again", 1)
		case <-ticker.C:
		}
	}
	return nil
}
