##@ Releases

# The builder is in a module of its own, so that Barque's does not depend on libraries for packages.
MKRELEASE := bin/mkrelease
ARCHS     ?= amd64,arm64
$(MKRELEASE): $(wildcard release/builder/*.go) release/builder/go.mod
	$(GO) build -C release/builder -o $(CURDIR)/$@ .

.PHONY: release
release: $(MKRELEASE) ## build the release of the commit into bin/release/VERSION (ARCHS=amd64,arm64 KEY=minisign.key PASSWORD_FILE=file)
	$(MKRELEASE) -o bin/release -archs '$(ARCHS)' -key '$(KEY)' -password-file '$(PASSWORD_FILE)'

# Both builds are from nothing but Go's build cache. With COLD=1 the second one has a cache of its
# own, so that the compiler's work is compared, too: half an hour for each architecture.
.PHONY: test-release
test-release: $(MKRELEASE) ## build the release twice in two directories, and compare all bytes (ARCHS=amd64 COLD=1)
	@first=$$(mktemp -d); second=$$(mktemp -d); trap 'rm -rf $$first $$second' EXIT; \
	$(MKRELEASE) -o $$first/a -archs '$(ARCHS)'; \
	$(if $(COLD),GOCACHE=$$second/cache) $(MKRELEASE) -o $$second/a/longer/name -archs '$(ARCHS)'; \
	diff -r $$first/a $$second/a/longer/name; \
	(cd $$first/a/* && sha256sum -c SHA256SUMS); echo "both builds have the same bytes"
