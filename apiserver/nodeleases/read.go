package nodeleases

import (
	"context"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
)

// Get implements rest.Getter.
func (s *Storage) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if namespace, _ := request.NamespaceFrom(ctx); isNodes(namespace) {
		atLeast := ""
		if options != nil {
			atLeast = options.ResourceVersion
		}
		node, revision, err := s.node(ctx, name, atLeast)
		if err != nil {
			return nil, err
		}
		if node != nil && IsMember(node) {
			return s.lease(node, revision), nil
		}
	}
	return s.Storage.Get(ctx, name, options)
}

// isNodes reports whether a namespace is that of nodes' leases.
func isNodes(namespace string) bool { return namespace == corev1.NamespaceNodeLease }

// node returns a Node, nil if there is none, and the revision at which it was read. It lists the
// one Node, because a list has its revision.
func (s *Storage) node(ctx context.Context, name, atLeast string) (*corev1.Node, string, error) {
	list, err := s.listNodes(ctx,
		&metainternalversion.ListOptions{ResourceVersion: atLeast, FieldSelector: named(name)})
	if err != nil || len(list.Items) == 0 {
		return nil, "", err
	}
	return &list.Items[0], list.ResourceVersion, nil
}

func named(name string) fields.Selector {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, name)
}

func (s *Storage) listNodes(ctx context.Context, options *metainternalversion.ListOptions) (*corev1.NodeList, error) {
	found, err := s.nodes().List(onNodes(ctx), options)
	if err != nil {
		return nil, err
	}
	nodes, ok := found.(*corev1.NodeList)
	if !ok {
		return nil, fmt.Errorf("listing nodes gave a %T", found)
	}
	return nodes, nil
}

// List implements rest.Lister. The stored leases come first.
func (s *Storage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if options == nil {
		options = &metainternalversion.ListOptions{}
	}
	if !hasNodes(ctx) {
		return s.ListEncoded(ctx, options)
	}
	if rest, ok := strings.CutPrefix(options.Continue, afterStored); ok {
		revision, token, ok := strings.Cut(rest, ".")
		if !ok {
			return nil, apierrors.NewBadRequest("the continue token is not valid")
		}
		list := &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: revision}}
		return list, s.fill(ctx, list, options, token)
	}
	list, err := s.listStored(ctx, options)
	if err != nil {
		return nil, err
	}
	if err := s.hide(ctx, list, options); err != nil {
		return nil, err
	}
	if list.Continue != "" {
		list.RemainingItemCount = nil // it does not count members
		return list, nil
	}
	return list, s.fill(ctx, list, options, "")
}

func (s *Storage) listStored(
	ctx context.Context, options *metainternalversion.ListOptions,
) (*coordinationv1.LeaseList, error) {
	found, err := s.Storage.List(ctx, options)
	if err != nil {
		return nil, err
	}
	list, ok := found.(*coordinationv1.LeaseList)
	if !ok {
		return nil, fmt.Errorf("listing leases gave a %T", found)
	}
	return list, nil
}

// storedAt lists the stored lease of a node, if there is one, as it was at a revision.
func (s *Storage) storedAt(ctx context.Context, name, revision string) (*coordinationv1.LeaseList, error) {
	o := at(revision)
	o.FieldSelector = named(name)
	return s.listStored(inNodes(ctx), o)
}

// hide takes the stored leases of members out of a page.
func (s *Storage) hide(
	ctx context.Context, list *coordinationv1.LeaseList, options *metainternalversion.ListOptions,
) error {
	inQuestion := 0
	for i := range list.Items {
		if isNodes(list.Items[i].Namespace) {
			inQuestion++
		}
	}
	if inQuestion == 0 {
		return nil
	}
	isMember, err := s.membersAt(ctx, list, inQuestion)
	if err != nil {
		return err
	}
	list.Items = slices.DeleteFunc(list.Items,
		func(l coordinationv1.Lease) bool { return isNodes(l.Namespace) && isMember[l.Name] })
	return nil
}

// few is up to how many Nodes are read one by one rather than all together.
const few = 500

// membersAt returns which nodes with a lease on a page were members at the page's revision.
func (s *Storage) membersAt(
	ctx context.Context, list *coordinationv1.LeaseList, inQuestion int,
) (map[string]bool, error) {
	isMember := map[string]bool{}
	note := func(o *metainternalversion.ListOptions) error {
		nodes, err := s.listNodes(ctx, o)
		if err != nil {
			return err
		}
		for i := range nodes.Items {
			isMember[nodes.Items[i].Name] = IsMember(&nodes.Items[i])
		}
		return nil
	}
	if inQuestion > few {
		return isMember, note(at(list.ResourceVersion))
	}
	for i := range list.Items {
		if !isNodes(list.Items[i].Namespace) {
			continue
		}
		o := at(list.ResourceVersion)
		o.FieldSelector = named(list.Items[i].Name)
		if err := note(o); err != nil {
			return nil, err
		}
	}
	return isMember, nil
}

// at are the options of a list at exactly that revision.
func at(revision string) *metainternalversion.ListOptions {
	return &metainternalversion.ListOptions{ResourceVersion: revision,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact}
}

// members lists the leases of members at a revision, or the newest when it is "". Pages of it are
// pages of Nodes.
func (s *Storage) members(
	ctx context.Context, options *metainternalversion.ListOptions, revision string,
) (*coordinationv1.LeaseList, error) {
	o := forNodes(options)
	if o.ResourceVersion, o.ResourceVersionMatch = "", ""; revision != "" && o.Continue == "" {
		o.ResourceVersion, o.ResourceVersionMatch = revision, metav1.ResourceVersionMatchExact
	}
	nodes, err := s.listNodes(ctx, o)
	if err != nil {
		return nil, err
	}
	if revision == "" {
		revision = nodes.ResourceVersion
	}
	match := s.matching(options)
	list := &coordinationv1.LeaseList{ListMeta: nodes.ListMeta,
		Items: make([]coordinationv1.Lease, 0, len(nodes.Items))}
	list.RemainingItemCount = nil // it counts Nodes
	for i := range nodes.Items {
		if !IsMember(&nodes.Items[i]) {
			continue
		}
		lease := s.lease(&nodes.Items[i], revision)
		switch ok, err := match.Matches(lease); {
		case err != nil:
			return nil, err
		case ok:
			list.Items = append(list.Items, *lease)
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

// forNodes are the options to list and watch Nodes. Selectors are about leases; all that holds of
// Nodes, too, is the name.
func forNodes(options *metainternalversion.ListOptions) *metainternalversion.ListOptions {
	o := *options
	o.LabelSelector, o.FieldSelector = nil, nil
	if options.FieldSelector != nil {
		if name, ok := options.FieldSelector.RequiresExactMatch(metav1.ObjectNameField); ok {
			o.FieldSelector = named(name)
		}
	}
	return &o
}

// afterStored begins the continue tokens of pages that have members' leases only. The rest is the
// revision of the stored ones, a dot, and the token of the Nodes' own pages.
const afterStored = "nodes."

// fill adds leases of members to a list that has no more stored ones, as many as its page has room
// for.
func (s *Storage) fill(
	ctx context.Context, list *coordinationv1.LeaseList, options *metainternalversion.ListOptions, token string,
) error {
	next := afterStored + list.ResourceVersion + "."
	o := *options
	o.Continue = token
	if o.Limit > 0 {
		if o.Limit -= int64(len(list.Items)); o.Limit <= 0 {
			list.Continue = next
			return nil
		}
	}
	more, err := s.members(ctx, &o, list.ResourceVersion)
	if err != nil {
		return err
	}
	list.Items = append(list.Items, more.Items...)
	if more.Continue != "" {
		list.Continue = next + more.Continue
	}
	return nil
}
