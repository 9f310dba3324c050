# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Page words, frame table and the stage that decides what each op does to them."""
