package nodeleases

import (
	"context"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// Get implements rest.Getter. It lists the one node, because a list tells at which revision it is.
func (s *Storage) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if scopeOf(ctx) != ofNodes {
		return s.Storage.Get(ctx, name, options)
	}
	o := &metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name)}
	if options != nil {
		o.ResourceVersion = options.ResourceVersion
	}
	list, err := s.ofNodes(ctx, o)
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
	}
	return &list.Items[0], nil
}

// List implements rest.Lister.
func (s *Storage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if options == nil {
		options = &metainternalversion.ListOptions{}
	}
	switch scopeOf(ctx) {
	case stored:
		return s.Storage.List(ctx, options)
	case ofNodes:
		return s.ofNodes(ctx, options)
	}
	return s.all(ctx, options)
}

// ofNodes lists the leases of nodes. Pages of it are pages of nodes.
func (s *Storage) ofNodes(ctx context.Context, options *metainternalversion.ListOptions) (*coordinationv1.LeaseList, error) {
	found, err := s.nodes().List(onNodes(ctx), forNodes(options))
	if err != nil {
		return nil, err
	}
	nodes, ok := found.(*corev1.NodeList)
	if !ok {
		return nil, fmt.Errorf("listing nodes gave a %T", found)
	}
	match := s.matching(options)
	list := &coordinationv1.LeaseList{ListMeta: nodes.ListMeta, Items: make([]coordinationv1.Lease, 0, len(nodes.Items))}
	for i := range nodes.Items {
		lease := s.lease(&nodes.Items[i], nodes.ResourceVersion)
		switch ok, err := match.Matches(lease); {
		case err != nil:
			return nil, err
		case ok:
			list.Items = append(list.Items, *lease)
		default:
			list.RemainingItemCount = nil // it counts nodes
		}
	}
	return list, nil
}

// matching selects among leases as the stored ones are selected.
func (s *Storage) matching(options *metainternalversion.ListOptions) storage.SelectionPredicate {
	label, field := labels.Everything(), fields.Everything()
	if options.LabelSelector != nil {
		label = options.LabelSelector
	}
	if options.FieldSelector != nil {
		field = options.FieldSelector
	}
	return s.PredicateFunc(label, field)
}

// forNodes are the options with which nodes are asked for. Selectors are about leases; all that holds of
// nodes, too, is the name.
func forNodes(options *metainternalversion.ListOptions) *metainternalversion.ListOptions {
	o := *options
	o.LabelSelector, o.FieldSelector = nil, nil
	if options.FieldSelector != nil {
		if name, ok := options.FieldSelector.RequiresExactMatch(metav1.ObjectNameField); ok {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name)
		}
	}
	return &o
}

// afterStored begins the continue tokens of pages that have nodes' leases only. What follows is the
// revision of the stored ones, a dot, and the token of the nodes' own pages.
const afterStored = "nodes."

// all lists the stored leases and then those of nodes.
func (s *Storage) all(ctx context.Context, options *metainternalversion.ListOptions) (*coordinationv1.LeaseList, error) {
	if rest, ok := strings.CutPrefix(options.Continue, afterStored); ok {
		revision, token, ok := strings.Cut(rest, ".")
		if !ok {
			return nil, apierrors.NewBadRequest("the continue token is not valid")
		}
		list := &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: revision}}
		return list, s.fill(ctx, list, options, token)
	}
	found, err := s.Storage.List(ctx, options)
	if err != nil {
		return nil, err
	}
	list, ok := found.(*coordinationv1.LeaseList)
	if !ok {
		return nil, fmt.Errorf("listing leases gave a %T", found)
	}
	if list.Continue != "" {
		list.RemainingItemCount = nil // it does not count nodes
		return list, nil
	}
	return list, s.fill(ctx, list, options, "")
}

// fill adds leases of nodes to a list that has no more stored ones, as many as its page has room for.
func (s *Storage) fill(ctx context.Context, list *coordinationv1.LeaseList, options *metainternalversion.ListOptions, token string) error {
	next := afterStored + list.ResourceVersion + "."
	o := *options
	o.Continue = token
	if token != "" {
		o.ResourceVersion, o.ResourceVersionMatch = "", ""
	}
	if o.Limit > 0 {
		if o.Limit -= int64(len(list.Items)); o.Limit <= 0 {
			list.Continue = next
			return nil
		}
	}
	more, err := s.ofNodes(ctx, &o)
	if err != nil {
		return err
	}
	for i := range more.Items {
		more.Items[i].ResourceVersion = list.ResourceVersion
	}
	list.Items = append(list.Items, more.Items...)
	if more.Continue != "" {
		list.Continue = next + more.Continue
	}
	return nil
}
