##@ Generated files

# The folders of what is generated for go:embed. Their READMEs alone are committed.
EMBEDDED = $(BUNDLE_DIR) $(SCHEMAS_DIR)/files $(CRDS_DIR)

.PHONY: generate
generate: schemas gateway-crds cis-page rights api-coverage ## generate all of these

# Schemas of the built-in kinds: upstream's generator reads them from the comments of k8s.io/api;
# packed into apiserver/openapi/schemas/files for go:embed. The stamp is younger than all of them.

SCHEMAS_DIR := apiserver/openapi/schemas
MKSCHEMAS   := bin/_schemas
# What the types of k8s.io/api refer to is read with them.
MACHINERY   := $(addprefix k8s.io/apimachinery/pkg/,api/resource apis/meta/v1 runtime util/intstr version)
# The kinds that Barque serves in place of metrics-server.
METRICS     := k8s.io/metrics/pkg/apis/metrics/v1beta1

.PHONY: schemas
schemas: $(MKSCHEMAS)/packed ## generate the OpenAPI schemas of the built-in kinds into apiserver/openapi/schemas/files

$(MKSCHEMAS)/packed: make/generate.mk go.mod $(SCHEMAS_DIR)/pack.go $(SCHEMAS_DIR)/schemas.go
	@mkdir -p $(@D)
	$(GO) tool openapi-gen --go-header-file /dev/null --report-filename /dev/null \
	  --output-dir $(@D) --output-pkg main --output-file definitions.go $(MACHINERY) $(METRICS) $$($(GO) list k8s.io/api/... | grep -v testing)
	cp $(SCHEMAS_DIR)/pack.go $(@D)/pack.go
	$(GO) run $(@D)/definitions.go $(@D)/pack.go $(SCHEMAS_DIR)/files
	touch $@

# ---------------------------------------------------------------------------------------------
# Definitions of the Gateway API, from upstream's module at the version in go.mod. Kinds that the
# gateway does not serve are left out.

CRDS_DIR := edge/gateway/crds/files
CRDS     := gatewayclasses gateways listenersets httproutes grpcroutes tlsroutes backendtlspolicies referencegrants

.PHONY: gateway-crds
gateway-crds: $(CRDS:%=$(CRDS_DIR)/%.yaml.gz) ## take the definitions of the Gateway API into edge/gateway/crds/files

# Listing a package downloads its module, which listing the module alone does not.
$(CRDS_DIR)/%.yaml.gz: make/generate.mk go.mod
	gzip -9 -n < "$$($(GO) list -f '{{.Module.Dir}}' sigs.k8s.io/gateway-api/apis/v1)/config/crd/standard/gateway.networking.k8s.io_$*.yaml" > $@

.PHONY: cis-page
cis-page: ## write the tables of docs/cis.md from the rows that `barque check --profile cis` judges
	$(GO) test ./cmd/barque -count=1 -run '^TestCISPage$$' -update

.PHONY: rights
rights: ## write the table of docs/rights.md from the roles of the control plane
	$(GO) test ./apiserver/rbac -count=1 -run '^TestRightsPage$$' -update

.PHONY: api-coverage
api-coverage: schemas ## write the table of docs/api-coverage.md from what the API server serves
	$(GO) test ./apiserver -count=1 -run '^TestAPI$$/^CoveragePage$$' -update
