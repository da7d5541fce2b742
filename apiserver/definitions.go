package apiserver

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
	// definitionPatience is how long a request waits until this server's informer has its
	// definition.
	definitionPatience = 5 * time.Second
	definitionPoll     = 2 * time.Millisecond
)

// freshDefinitions stands behind the server of custom resources. That one uses its informer, which
// is a moment behind the store, and would answer 404 for a resource that another server serves
// already. This one reads the store, and sends the request back when there is a definition.
type freshDefinitions struct {
	get    func(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error)
	known  crdlisters.CustomResourceDefinitionLister
	again  http.Handler // the server of custom resources
	next   http.Handler // answers 404
	codecs runtime.NegotiatedSerializer
}

type askedAgain struct{}

// ServeHTTP implements http.Handler.
func (f *freshDefinitions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || !info.IsResourceRequest || info.APIGroup == "" || ctx.Value(askedAgain{}) != nil {
		f.next.ServeHTTP(w, r)
		return
	}
	name := info.Resource + "." + info.APIGroup
	if len(content.IsPathSegmentName(name)) > 0 { // no object has such a name, and no client sends it
		f.next.ServeHTTP(w, r)
		return
	}
	crd, err := f.get(ctx, name)
	// A definition that this server's informer has by now may have been too late for the server of
	// custom resources a moment ago: the request is sent back in any case.
	if apierrors.IsNotFound(err) || err == nil && !serves(crd, info.APIVersion) {
		f.next.ServeHTTP(w, r)
		return
	}
	if err == nil {
		err = f.await(ctx, crd)
	}
	if err != nil {
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		responsewriters.ErrorNegotiated(err, f.codecs, gv, w, r)
		return
	}
	f.again.ServeHTTP(w, r.WithContext(context.WithValue(ctx, askedAgain{}, true)))
}

// serves reports whether a definition makes the server serve a version.
func serves(crd *apiextensionsv1.CustomResourceDefinition, version string) bool {
	return apihelpers.HasServedCRDVersion(crd, version) &&
		(apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) ||
			apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted))
}

// knows reports whether this server's informer has a definition as it is.
func (f *freshDefinitions) knows(crd *apiextensionsv1.CustomResourceDefinition) bool {
	known, err := f.known.Get(crd.Name)
	if err != nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(known.ResourceVersion, crd.ResourceVersion)
	return err == nil && order >= 0
}

func (f *freshDefinitions) await(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) error {
	ctx, cancel := context.WithTimeout(ctx, definitionPatience)
	defer cancel()
	ticker := time.NewTicker(definitionPoll)
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
